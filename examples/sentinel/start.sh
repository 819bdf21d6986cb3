#!/bin/sh
# Starts a server of the group (`start.sh server`) or a sentinel (`start.sh sentinel`).
#
# The first start writes the configuration beside the data. Later ones keep it, because Sentinel writes into it who the
# master is: a server that forgot this would offer old data after a restart of the whole group.
#
# DATA        directory of the data and the configuration
# HOST, PORT  where the others reach this program
# FIRST       host and port of the master at first
# PASSWORD_FILE  one password for servers and sentinels
# BASE        redis.conf of the project
set -eu
config=$DATA/$1.conf
password=$(cat "$PASSWORD_FILE")
umask 077
if [ ! -e "$config" ] && [ "$1" = server ]; then
    cat > "$config" <<END
include $BASE
dir $DATA
port $PORT
bind * -::*
requirepass $password
masterauth $password
replica-announce-ip $HOST
replica-announce-port $PORT
min-replicas-to-write 1
min-replicas-max-lag 2
END
    [ "$FIRST" = "$HOST $PORT" ] || echo "replicaof $FIRST" >> "$config"
elif [ ! -e "$config" ]; then
    # Names in place of addresses, because a container that starts again has another address.
    cat > "$config" <<END
dir $DATA
port $PORT
bind * -::*
requirepass $password
sentinel sentinel-pass $password
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip $HOST
sentinel announce-port $PORT
sentinel monitor mymaster $FIRST 2
sentinel auth-pass mymaster $password
sentinel down-after-milliseconds mymaster 5000
sentinel failover-timeout mymaster 30000
END
fi
[ "$1" = server ] || exec redis-server "$config" --sentinel
exec redis-server "$config"
