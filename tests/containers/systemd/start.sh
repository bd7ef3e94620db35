# The engine mounts cgroups read-only, and systemd makes its own below that of the container: in
# version 2, or in version 1 in its hierarchy "systemd", which may have a companion of version 2.
for folder in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
    if mountpoint --quiet "$folder"; then
        mount -o remount,bind,rw "$folder"
    fi
done
exec /lib/systemd/systemd
