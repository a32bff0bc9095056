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

	"github.com/nodecache/node-cache/internal/proctest"
)

// A cgroup limits the memory of the programs in it, by version 1 or 2 of the kernel's interface.
type cgroup struct {
	dir string
	v2  bool
}

// newCgroup makes a memory cgroup with a limit in octets. It skips the test where none can be made.
func newCgroup(t *testing.T, limit int64) *cgroup {
	t.Helper()
	var why error
	for _, c := range parents() {
		c.dir = filepath.Join(c.dir, fmt.Sprintf("node-cache-test-%d-%x", os.Getpid(), rand.Uint32()))
		err := c.create(limit)
		if err == nil {
			t.Cleanup(func() { c.remove(t) })
			return &c
		}
		why = errors.Join(why, err)
	}
	t.Skipf("no memory cgroup can be made here, which takes root: %v", why)
	return nil
}

// parents are the places where a cgroup may be made, the best first.
func parents() (list []cgroup) {
	list = append(list, cgroup{dir: "/sys/fs/cgroup/memory"}, cgroup{dir: "/sys/fs/cgroup", v2: true})
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return list
	}
	for line := range strings.Lines(string(own)) {
		switch fields := strings.SplitN(strings.TrimSpace(line), ":", 3); {
		case len(fields) < 3:
		case fields[1] == "memory":
			list = append(list, cgroup{dir: filepath.Join("/sys/fs/cgroup/memory", fields[2])})
		case fields[0] == "0":
			list = append(list, cgroup{dir: filepath.Join("/sys/fs/cgroup", fields[2]), v2: true})
		}
	}
	return list
}

func (c *cgroup) create(limit int64) error {
	if _, err := os.Stat(filepath.Join(filepath.Dir(c.dir), c.file("cgroup.procs", "cgroup.controllers"))); err != nil {
		return err
	}
	if c.v2 { // it may be so already; if it cannot be, setting the limit fails
		_ = os.WriteFile(filepath.Join(filepath.Dir(c.dir), "cgroup.subtree_control"), []byte("+memory"), 0o644)
	}
	if err := os.Mkdir(c.dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	err := c.setLimit(limit)
	if err == nil && !c.v2 {
		// Version 1 counts what sockets hold apart, and only once that has a limit.
		err = c.write("memory.kmem.tcp.limit_in_bytes", limit)
	}
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
	fresh := filepath.Join(t.TempDir(), filepath.Base(name))
	if err := copyUncached(fresh, name); err != nil {
		t.Fatal(err)
	}
	const script = `echo $$ >"$0" && exec "$@"`
	enter := []string{"-c", script, filepath.Join(c.dir, "cgroup.procs")}
	return exec.Command("/bin/sh", append(enter, proctest.Alone(fresh, args...)...)...)
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

// usage is what the cgroup uses now, in octets, with what the kernel holds for it and its sockets.
func (c *cgroup) usage(t *testing.T) int64 {
	t.Helper()
	if c.v2 {
		return c.read(t, "memory.current")
	}
	return c.read(t, "memory.usage_in_bytes") + c.read(t, "memory.kmem.tcp.usage_in_bytes")
}

// kills is how often the kernel has killed for want of memory in the cgroup.
func (c *cgroup) kills(t *testing.T) int64 {
	t.Helper()
	return c.field(t, c.file("memory.oom_control", "memory.events"), "oom_kill")
}

func (c *cgroup) field(t *testing.T, file, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, file))
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	return number(t, string(text))
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
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
