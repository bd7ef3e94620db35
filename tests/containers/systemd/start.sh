# The engine mounts cgroups read-only, and systemd needs to make its own below that of the container.
for folder in /sys/fs/cgroup /sys/fs/cgroup/*; do
    if mountpoint --quiet "$folder"; then
        mount -o remount,rw "$folder"
    fi
done
exec /lib/systemd/systemd
