// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// A cgroup limits the memory or the CPU time of the programs in it, by version 1 or 2 of the kernel's interface.
type cgroup struct {
	dir        string
	controller string // "memory" or "cpu"
	v2         bool
}

// newCgroup makes a memory cgroup with a limit in bytes. It skips the test where none can be made.
func newCgroup(t *testing.T, limit int64) *cgroup {
	t.Helper()
	return makeCgroup(t, "memory", func(c *cgroup) error {
		err := c.setLimit(limit)
		if err == nil && !c.v2 {
			// Version 1 counts what sockets hold apart, and only once that has a limit.
			err = c.write("memory.kmem.tcp.limit_in_bytes", limit)
		}
		return err
	})
}

// newCPUCgroup makes a cgroup whose programs have a CPU for part of the time, as a container with that limit.
func newCPUCgroup(t *testing.T, part time.Duration, of time.Duration) *cgroup {
	t.Helper()
	return makeCgroup(t, "cpu", func(c *cgroup) error {
		if c.v2 {
			return os.WriteFile(filepath.Join(c.dir, "cpu.max"), fmt.Appendf(nil, "%d %d", part.Microseconds(), of.Microseconds()), 0o644)
		}
		return errors.Join(c.write("cpu.cfs_period_us", of.Microseconds()), c.write("cpu.cfs_quota_us", part.Microseconds()))
	})
}

// newFirstCgroup makes a cgroup whose programs go before all others where these want more CPU time than there is.
func newFirstCgroup(t *testing.T) *cgroup {
	t.Helper()
	return makeCgroup(t, "cpu", func(c *cgroup) error {
		if c.v2 {
			return c.write("cpu.weight", 10_000)
		}
		return c.write("cpu.shares", 1<<18)
	})
}

// makeCgroup makes a cgroup of a controller and limits it. It skips the test where none can be made.
func makeCgroup(t *testing.T, controller string, limit func(*cgroup) error) *cgroup {
	t.Helper()
	var why error
	for _, c := range parents(controller) {
		c.dir = filepath.Join(c.dir, fmt.Sprintf("node-cache-test-%d-%x", os.Getpid(), rand.Uint32()))
		err := c.create(limit)
		if err == nil {
			t.Cleanup(func() { c.remove(t) })
			return &c
		}
		why = errors.Join(why, err)
	}
	t.Skipf("no %s cgroup can be made here, which takes root: %v", controller, why)
	return nil
}

// parents are the places where a cgroup may be made, the best first.
func parents(controller string) (list []cgroup) {
	add := func(dir string, v2 bool) { list = append(list, cgroup{dir: dir, controller: controller, v2: v2}) }
	top := filepath.Join("/sys/fs/cgroup", controller)
	own, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(own)) {
		switch fields := strings.SplitN(strings.TrimSpace(line), ":", 3); {
		case len(fields) < 3:
		case fields[1] == controller:
			add(filepath.Join(top, fields[2]), false)
		case fields[0] == "0":
			add(filepath.Join("/sys/fs/cgroup", fields[2]), true)
		}
	}
	add(top, false)
	add("/sys/fs/cgroup", true)
	return list
}

func (c *cgroup) create(limit func(*cgroup) error) error {
	if _, err := os.Stat(filepath.Join(filepath.Dir(c.dir), c.file("cgroup.procs", "cgroup.controllers"))); err != nil {
		return err
	}
	if c.v2 { // it may be so already; if it cannot be, setting the limit fails
		_ = os.WriteFile(filepath.Join(filepath.Dir(c.dir), "cgroup.subtree_control"), []byte("+"+c.controller), 0o644)
	}
	if err := os.Mkdir(c.dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	err := limit(c)
	if err != nil {
		_ = os.Remove(c.dir)
	}
	return err
}

// setLimit changes how much the programs may use.
func (c *cgroup) setLimit(limit int64) error {
	if err := c.write(c.file("memory.limit_in_bytes", "memory.max"), limit); err != nil {
		return err
	}
	// Nothing is to be swapped out: a node has no swap. Kernels without it lack the file.
	if c.v2 {
		_ = c.write("memory.swap.max", 0)
	} else {
		_ = c.write("memory.swappiness", 0)
	}
	return nil
}

// file is the name of a file in version 1 or 2.
func (c *cgroup) file(v1, v2 string) string {
	if c.v2 {
		return v2
	}
	return v1
}

func (c *cgroup) write(file string, value int64) error {
	return os.WriteFile(filepath.Join(c.dir, file), strconv.AppendInt(nil, value, 10), 0o644)
}

// command is a program that is in the cgroup from its first moment, and of which nothing is in memory yet, so that its
// pages count as the cgroup's as they do in a container. It runs as [proctest.Alone] says.
func (c *cgroup) command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	line := c.enter(proctest.ReservedCPUCommand(uncached(t, name), args...)...)
	return exec.Command(line[0], line[1:]...)
}

// enter is the command line of a program that is in the cgroup from its first moment.
func (c *cgroup) enter(line ...string) []string {
	const script = `echo $$ >"$0" && exec "$@"`
	return append([]string{"/bin/sh", "-c", script, filepath.Join(c.dir, "cgroup.procs")}, line...)
}

// uncached is a copy of a program of which nothing is in memory.
func uncached(t *testing.T, name string) string {
	t.Helper()
	fresh := filepath.Join(t.TempDir(), filepath.Base(name))
	assert.NoError(t, copyUncached(fresh, name))
	return fresh
}

// copyUncached copies a program and has the kernel forget the copy's pages.
func copyUncached(to, from string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_RDWR, 0o755)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Write(text); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// usage is what the cgroup uses now, in bytes, with what the kernel holds for it and its sockets.
func (c *cgroup) usage(t *testing.T) int64 {
	t.Helper()
	if c.v2 {
		return c.read(t, "memory.current")
	}
	return c.read(t, "memory.usage_in_bytes") + c.read(t, "memory.kmem.tcp.usage_in_bytes")
}

// workingSet is the usage without pages of files that the kernel frees before it kills, as the kubelet counts it.
func (c *cgroup) workingSet(t *testing.T) int64 {
	t.Helper()
	return c.usage(t) - c.field(t, "memory.stat", "inactive_file")
}

// kills is how often the kernel has killed for lack of memory in the cgroup.
func (c *cgroup) kills(t *testing.T) int64 {
	t.Helper()
	return c.field(t, c.file("memory.oom_control", "memory.events"), "oom_kill")
}

func (c *cgroup) field(t *testing.T, file, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, file))
	assert.NoError(t, err)
	for line := range bytes.Lines(text) {
		if value, ok := strings.CutPrefix(string(line), name+" "); ok {
			return number(t, value)
		}
	}
	t.Fatalf("%s has no %s:\n%s", file, name, text)
	return 0
}

func (c *cgroup) read(t *testing.T, file string) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, file))
	assert.NoError(t, err)
	return number(t, string(text))
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	assert.NoError(t, err)
	return n
}

// remove takes the cgroup away, which the kernel allows once its last program is quite gone.
func (c *cgroup) remove(t *testing.T) {
	t.Helper()
	var err error
	for range 100 {
		if err = os.Remove(c.dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("removing a cgroup: %v", err)
}
