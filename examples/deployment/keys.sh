#!/usr/bin/env bash
# Make a certificate authority, the SuperLink's certificate and a key pair for every SuperNode.
source "$(dirname "$0")/settings.sh"
mkdir -p "$STATE"/{certificates,keys,logs,pids,flwr}
cd "$STATE/certificates"

if [[ ! -e ca.crt ]]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 3650 \
        -keyout ca.key -out ca.crt -subj "/CN=robfcp deployment CA" \
        -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign"
fi 2>/dev/null
if [[ ! -e server.pem ]]; then
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes \
        -keyout server.key -out server.csr -subj "/CN=localhost"
    openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 \
        -out server.pem -extfile <(echo "subjectAltName=DNS:localhost,IP:127.0.0.1")
fi 2>/dev/null
for ((i = 1; i <= NODES; i++)); do
    [[ -e $STATE/keys/site-$i ]] ||
        ssh-keygen -q -t ecdsa -b 384 -N "" -C "site-$i" -f "$STATE/keys/site-$i"
done
cat >"$FLWR_HOME/config.toml" <<END
[superlink]
default = "deployment"

[superlink.deployment]
address = "$ADDRESS"
root-certificates = "$STATE/certificates/ca.crt"
END
echo "certificates and $NODES keys in $STATE"
