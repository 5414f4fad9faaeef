"use strict";
// The data that the library embedded.
const DATA = JSON.parse(document.getElementById("data").textContent);
