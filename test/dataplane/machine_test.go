// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// prepareMounts makes the files that Cilium sees: its own pins, sockets and control group, the devices of its own network, and settings
// of the kernel that it cannot change for the machine. $1 is the control group.
const prepareMounts = `set -e
mount -t sysfs dataplane /sys
mount -t bpf dataplane /sys/fs/bpf
mount --bind /proc/sys/kernel /proc/sys/kernel
mount -o remount,bind,ro /proc/sys/kernel
mount -t tmpfs dataplane /run
mkdir /run/cilium /run/cgroups /run/cgroup
mount -t cgroup2 dataplane /run/cgroups
mount --bind /run/cgroups/$1 /run/cgroup
echo ready
exec sleep infinity
`

// A mountSpace is a mount namespace on a host. A process holds it.
type mountSpace struct {
	host   *nodetest.Host
	holder *proctest.Process
}

func newMountSpace(t *testing.T, host *nodetest.Host) *mountSpace {
	t.Helper()
	holder := proctest.Start(t, "the mount namespace", host.Command(context.WithoutCancel(t.Context()), "unshare", "--mount", "--propagation=private",
		"sh", "-c", prepareMounts, "sh", filepath.Base(makeCgroup(t))))
	proctest.Eventually(t, limit, "the mount namespace is ready", func() bool {
		return holder.Ended() || strings.Contains(holder.Stdout.String(), "ready")
	})
	if holder.Ended() {
		t.Fatalf("making a mount namespace: %s", holder.Tail(5))
	}
	return &mountSpace{host, holder}
}

// command is a program on the host that sees these mounts.
func (m *mountSpace) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return m.host.Command(ctx, "nsenter", append([]string{fmt.Sprintf("--mount=/proc/%d/ns/mnt", m.holder.PID()), "--", name}, args...)...)
}

// path is where the test finds a file of the namespace.
func (m *mountSpace) path(name string) string {
	return fmt.Sprintf("/proc/%d/root%s", m.holder.PID(), name)
}

// makeCgroup makes a control group of version 2 below the root, until the test ends. Its processes are gone by then.
func makeCgroup(t *testing.T) string {
	t.Helper()
	root := ""
	for _, m := range mounts(t) {
		if fields := strings.Fields(m); slices.Contains(fields, "cgroup2") && root == "" {
			root = fields[4]
		}
	}
	if root == "" {
		t.Skip("no control groups of version 2")
	}
	left, err := filepath.Glob(filepath.Join(root, cgroupPrefix+"*"))
	assert.NoError(t, err)
	for _, group := range left { // of tests that were killed
		pid, _ := strconv.Atoi(strings.TrimPrefix(filepath.Base(group), cgroupPrefix))
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			assert.NoError(t, os.Remove(group))
		}
	}
	group := filepath.Join(root, fmt.Sprintf("%s%d", cgroupPrefix, os.Getpid()))
	assert.NoError(t, os.Mkdir(group, 0o755))
	t.Cleanup(func() {
		proctest.Eventually(t, limit, "the control group is free", func() bool { return os.Remove(group) == nil })
	})
	return group
}

// cgroupPrefix begins the names of the groups here, and the number of the process that made one follows.
const cgroupPrefix = "dataplane-"

// mounts are the lines of the machine's table of mounts.
func mounts(t *testing.T) (lines []string) {
	t.Helper()
	file, err := os.Open("/proc/self/mountinfo")
	assert.NoError(t, err)
	defer func() { _ = file.Close() }()
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		lines = append(lines, scanner.Text())
	}
	return lines
}

// leavings are what Cilium could leave on the machine: mounts, pins, control groups, programs and maps in the kernel.
func leavings(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{"mounts": {}, "pins": {}, "control groups": {}, "programs": {}, "maps": {}}
	add := func(kind, what string) { found[kind] = append(found[kind], what) }
	for _, m := range mounts(t) {
		fields := strings.Fields(m)
		if strings.Contains(m, "dataplane") || strings.Contains(m, "cilium") {
			add("mounts", m)
		}
		if slices.Contains(fields, "cgroup2") {
			groups, _ := filepath.Glob(filepath.Join(fields[4], cgroupPrefix+"*"))
			found["control groups"] = append(found["control groups"], groups...)
		}
	}
	for _, folder := range []string{"/sys/fs/bpf/*", "/run/cilium*", "/var/lib/cilium*"} {
		names, _ := filepath.Glob(folder)
		found["pins"] = append(found["pins"], names...)
	}
	for id, err := ebpf.ProgramGetNextID(0); err == nil; id, err = ebpf.ProgramGetNextID(id) {
		if p, err := ebpf.NewProgramFromID(id); err == nil { // it may be gone
			if info, err := p.Info(); err == nil && (strings.HasPrefix(info.Name, "cil_") || strings.HasPrefix(info.Name, "tail_")) {
				add("programs", fmt.Sprintf("%d %s", id, info.Name))
			}
			_ = p.Close()
		}
	}
	for id, err := ebpf.MapGetNextID(0); err == nil; id, err = ebpf.MapGetNextID(id) {
		if m, err := ebpf.NewMapFromID(id); err == nil {
			if info, err := m.Info(); err == nil && strings.HasPrefix(info.Name, "cilium_") &&
				info.Type != ebpf.ProgramArray { // Linux 6.18 keeps some of 1.15's for good, without programs
				add("maps", fmt.Sprintf("%d %s", id, info.Name))
			}
			_ = m.Close()
		}
	}
	return found
}

// expectNothingLeft compares the machine, once all else of the test has ended, with what it is now.
func expectNothingLeft(t *testing.T) {
	t.Helper()
	before := leavings(t)
	t.Cleanup(func() {
		var diff string
		for began := time.Now(); ; time.Sleep(200 * time.Millisecond) { // the kernel frees programs a while after their last use
			if diff = cmp.Diff(before, leavings(t)); diff == "" {
				return
			}
			if time.Since(began) > limit {
				t.Errorf("the machine is not as it was (-before +after):\n%s", diff)
				return
			}
		}
	})
}
