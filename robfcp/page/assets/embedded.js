"use strict";
// What the library embedded.
const DATA = JSON.parse(document.getElementById("data").textContent);
