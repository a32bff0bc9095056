// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
)

const (
	mib = 1 << 20
	// cgroups is where hack/kernel-init.sh mounts version 2, as the first process of any machine does.
	cgroups = "/sys/fs/cgroup"
	// pod and container are the groups that the kubelet and containerd make, in version 2.
	pod       = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod5f0c.slice"
	container = pod + "/cri-containerd-0a1b.scope"
)

// A cgroup is the folder of a group of processes whose memory is limited.
type cgroup string

// newContainer makes the cgroup container of version 2 with all on its way, and removes them when the test ends.
func newContainer(t *testing.T) cgroup {
	t.Helper()
	c := cgroup(cgroups)
	for part := range strings.SplitSeq(container, "/") {
		assert.NoError(t, os.WriteFile(c.file("cgroup.subtree_control"), []byte("+memory"), 0o644))
		c = cgroup(c.file(part))
		c.make(t)
	}
	return c
}

// newHybrid mounts the memory controller as version 1 beside version 2, as machines of some years ago have it, and makes
// a cgroup there. The kernel is in no hurry to take the controller back: no test after this one has it in version 2.
func newHybrid(t *testing.T, path string) cgroup {
	t.Helper()
	top := t.TempDir()
	// The kernel hands the controller over once the groups of other tests are quite gone, with the pages that are theirs.
	poll(t, "version 1 has the memory controller", func() error {
		_ = os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
		return unix.Mount("cgroup", top, "cgroup", 0, "memory")
	})
	t.Cleanup(func() {
		if err := unix.Unmount(top, 0); err != nil {
			t.Errorf("unmounting version 1: %v", err)
		}
	})
	c := cgroup(top)
	for part := range strings.SplitSeq(path, "/") {
		c = cgroup(c.file(part))
		c.make(t)
	}
	return c
}

func (c cgroup) make(t *testing.T) {
	t.Helper()
	if err := os.Mkdir(string(c), 0o755); errors.Is(err, fs.ErrExist) {
		return
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		poll(t, "a cgroup is removed, once its last process is quite gone", func() error { return os.Remove(string(c)) })
	})
}

func (c cgroup) file(name string) string { return filepath.Join(string(c), name) }

// set writes a number of bytes to a file of the cgroup.
func (c cgroup) set(t *testing.T, file string, n int64) {
	t.Helper()
	assert.NoError(t, os.WriteFile(c.file(file), strconv.AppendInt(nil, n, 10), 0o644))
}

// field is a number in a file whose lines are a name and a number each.
func (c cgroup) field(t *testing.T, file, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(c.file(file))
	assert.NoError(t, err)
	for line := range bytes.Lines(text) {
		if value, ok := strings.CutPrefix(string(line), name+" "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			if err != nil {
				t.Fatalf("%s of %s: %v", name, file, err)
			}
			return n
		}
	}
	t.Fatalf("%s has no %s:\n%s", file, name, text)
	return 0
}

// kills is how often the kernel has killed for lack of memory in this cgroup of version 2.
func (c cgroup) kills(t *testing.T) int64 {
	t.Helper()
	return c.field(t, "memory.events", "oom_kill")
}

// command has a program be in the cgroup from its first moment, and see all cgroups.
func (c cgroup) command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	dir, err := os.Open(string(c))
	assert.NoError(t, err)
	t.Cleanup(func() { _ = dir.Close() })
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	return cmd
}

// containerCommand has a program be in the cgroup as in a container: in namespaces in which the cgroup is the root of all that can
// be seen, mounted by the shell command mount.
func (c cgroup) containerCommand(t *testing.T, mount, name string, args ...string) *exec.Cmd {
	t.Helper()
	script := []string{"-c", "umount " + cgroups + " && " + mount + ` && exec "$0" "$@"`, name}
	cmd := c.command(t, "sh", append(script, args...)...)
	cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWCGROUP | unix.CLONE_NEWNS
	return cmd
}

// What contain mounts: version 2 as a container runtime does, and nothing, so that no limit is known.
const (
	mountUnified = "mount -t cgroup2 cgroup2 " + cgroups
	mountNothing = "true"
)

// hybridCommand has a program be in a cgroup of version 1, with just that one mounted as a container runtime does.
func (c cgroup) hybridCommand(name string, args ...string) *exec.Cmd {
	const script = `echo $$ >"$0/cgroup.procs" && mount -t tmpfs cgroup ` + cgroups + ` && mkdir ` + cgroups + `/memory ` + cgroups + `/unified &&
mount --bind "$0" ` + cgroups + `/memory && mount -t cgroup2 cgroup2 ` + cgroups + `/unified && exec "$@"`
	cmd := exec.Command("sh", append([]string{"-c", script, string(c), name}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	return cmd
}
