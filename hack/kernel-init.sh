#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The first process of the machine that hack/test-kernel.sh boots. It runs the test binaries listed in /tests/list, each
# line "PACKAGE BINARY SECONDS [FLAG]...", writes the results to the serial port that the kernel's parameter results names, and switches the machine off.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox stty -F "/dev/$results" raw -echo
exec </dev/null >"/dev/$results" 2>&1
/bin/busybox --install -s /bin
# The kernel calls this to load a module, as on any machine. One call at a time: a second call for a module that is still being
# loaded has to wait, and the modprobe of busybox does not wait. The wait is bounded, because a module may load another one at its
# start.
cat >/sbin/modprobe <<'EOF'
#!/bin/busybox sh
tries=0
until mkdir /run/modprobe 2>/dev/null || [ $tries = 100 ]; do usleep 20000; tries=$((tries + 1)); done
busybox modprobe "$@"
status=$?
rmdir /run/modprobe
exit $status
EOF
chmod +x /sbin/modprobe
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup # as systemd does
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t tmpfs run /run
mkdir -p /dev/shm /run/netns
ln -s /proc/self/fd /dev/fd
ip link set lo up
echo "@@kernel $(uname -r), up after $(cut -d ' ' -f 1 /proc/uptime) s"

while read -r package binary seconds flags; do
  echo "@@begin $package"
  start=$(cut -d . -f 1 /proc/uptime)
  # shellcheck disable=SC2086 # a list of words
  (cd "/src/$package" && timeout -s KILL $((seconds + 5)) "/tests/$package/$binary" \
    -test.v=test2json -test.timeout="${seconds}s" -test.paniconexit0 -test.short $flags)
  status=$?
  echo # the mark must begin a line, also if the binary's output ended without one
  echo "@@end $package $status $(($(cut -d . -f 1 /proc/uptime) - start))"
done </tests/list
echo "@@done"
sync
poweroff -f
