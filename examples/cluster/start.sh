#!/bin/sh
# Starts a node (`start.sh node`), or makes a cluster of all nodes that run (`start.sh create`).
#
# DATA           directory of the data, and of what the node knows about the others
# HOST, PORT     where the others reach the node
# NODES          host:port of all nodes: the masters, then a replica for each
# PASSWORD_FILE  one password for all nodes
# BASE           redis.conf of the project
set -eu
password=$(cat "$PASSWORD_FILE")
if [ "$1" = create ]; then
    export REDISCLI_AUTH="$password"
    for node in $NODES; do
        until redis-cli -h "${node%:*}" -p "${node#*:}" ping | grep -q PONG; do sleep 1; done
    done
    # $node is the last one. A later start finds the cluster, which the nodes remember.
    redis-cli -h "${node%:*}" -p "${node#*:}" cluster info | grep -q "^cluster_known_nodes:1[^0-9]" || exit 0
    # shellcheck disable=SC2086 - words
    exec redis-cli --cluster create $NODES --cluster-replicas 1 --cluster-yes
fi
umask 077
cat > "$DATA/server.conf" <<END
include $BASE
dir $DATA
port $PORT
bind * -::*
requirepass $password
masterauth $password
cluster-enabled yes
cluster-announce-ip $HOST
cluster-node-timeout 5000
cluster-require-full-coverage no
END
exec redis-server "$DATA/server.conf"
