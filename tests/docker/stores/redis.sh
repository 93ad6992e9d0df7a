# The server never runs as root.
set -eu
chown -R redis:redis /data
exec setpriv --reuid=redis --regid=redis --clear-groups "$@"
