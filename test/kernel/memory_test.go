// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// needsUnified skips the test but in the machine of hack/test-kernel.sh, which has what it needs, or something is wrong.
func needsUnified(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("node-cache"); err != nil {
		t.Skip("no node-cache in the path: hack/test-kernel.sh brings one")
	}
	if _, err := os.Stat(filepath.Join(cgroups, "cgroup.controllers")); err != nil {
		t.Fatal("no cgroup version 2 at " + cgroups)
	}
}

// TestMemoryLimitIsSeen starts agents in all kinds of cgroups.
func TestMemoryLimitIsSeen(t *testing.T) {
	needsUnified(t)
	up := startUpstream(t)
	type limits map[string]map[string]int64 // MiB by file by cgroup
	tests := []struct {
		name   string
		limits limits
		inside bool // as in a container
		want   int64
	}{
		{"no limit", limits{container: {}}, true, 0},
		{"of a container", limits{container: {"memory.max": 48}}, true, 48},
		{"of a pod, seen from the machine", limits{pod: {"memory.max": 56}, container: {"memory.max": 64}}, false, 56},
		{"where the kernel begins to slow it down", limits{container: {"memory.max": 64, "memory.high": 52}}, true, 52},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newContainer(t)
			for path, files := range tt.limits {
				for file, n := range files {
					cgroup(filepath.Join(cgroups, path)).set(t, file, n*mib)
				}
			}
			l := startLoopbackAgent(t, up, 16*mib, func(name string, args ...string) *exec.Cmd {
				if tt.inside {
					return c.containerCommand(t, mountUnified, name, args...)
				}
				return c.command(t, name, args...)
			})
			l.expectLimits(t, tt.want*mib, 16*mib)
		})
	}
}

// expectLimits wants the agent to have shared out a limit in bytes, of which the cache has size; 0: none.
func (l *loopbackAgent) expectLimits(t *testing.T, limit, size int64) {
	t.Helper()
	m := l.status(t).Memory
	if limit == 0 {
		if m.CgroupBytes != 0 || m.GoLimitBytes != 0 || m.Inflight != 4096 || m.Waiting != 16384 {
			t.Errorf("no limit, and the agent has %+v", m)
		}
		return
	}
	// docs/memory.md: a tenth, at least 13 MiB, is reserved, and the rest is Go's. All of these limits are too small for
	// the queries that may be under way by default.
	want := limit - max(13*mib, limit/10) - size
	if m.CgroupBytes != limit || m.GoLimitBytes != want || m.By != "cgroup" || m.Inflight >= 4096 || m.Waiting >= 16384 {
		t.Errorf("a limit of %d, and the agent has %+v, want %d for Go", limit, m, want)
	}
}

// What TestMemoryHoldsUnified has, in bytes: 28 MiB beside the cache are just not too little. The limit is lowered to that
// while the agent runs.
const (
	heldCache = 8 * mib
	heldFirst = 44 * mib
	heldLimit = 36 * mib
	// What may lie in sockets is a 24th of the limit at the start, and what those to the upstream hold.
	heldSockets = heldFirst/24 + 2*mib
)

// TestMemoryHoldsUnified has an agent in a container of version 2, where what lies in sockets counts, asked until its cache
// is full, stopped and flooded until its sockets are, and flooded on while its upstream is silent. The kernel does not end
// it before the limit is less than what it has by right.
func TestMemoryHoldsUnified(t *testing.T) {
	needsUnified(t)
	up, c := startUpstream(t), newContainer(t)
	c.set(t, "memory.max", heldFirst)
	l := startLoopbackAgent(t, up, heldCache, func(name string, args ...string) *exec.Cmd { return c.containerCommand(t, mountUnified, name, args...) })
	l.expectLimits(t, heldFirst, heldCache)
	c.set(t, "memory.max", heldLimit)
	l.fill(t)
	sockets := l.floodSockets(t, up, c)
	t.Attr("held", fmt.Sprintf("%d of %d bytes in sockets, %d in the process", sockets, int64(heldLimit), c.field(t, "memory.stat", "anon")))
	if sockets > heldSockets {
		t.Errorf("%d bytes lie in sockets, want %d at most", sockets, int64(heldSockets))
	}
	l.answers(t, "new.test.")
	if kills := c.kills(t); kills != 0 || l.Ended() {
		t.Fatalf("the kernel has killed %d times, the agent: %v", kills, l.Err())
	}
	poll(t, "the agent sees the new limit", func() error { // it looks every 10 s
		s, err := l.fetch(t)
		if err == nil && s.Memory.CgroupBytes != heldLimit {
			err = fmt.Errorf("it sees %d", s.Memory.CgroupBytes)
		}
		return err
	})
	l.expectLimits(t, heldLimit, heldCache)
	if p := l.status(t).Problems; len(p) > 0 {
		t.Errorf("problems: %v", p)
	}
	c.set(t, "memory.max", heldCache) // the cache alone is as large
	if err := l.Wait(t, limit); err == nil || c.kills(t) == 0 {
		t.Errorf("with less than it has, the agent ended with %v and the kernel has killed %d times: it limits nothing", err, c.kills(t))
	}
}

// TestMemoryUnseen does the same to an agent that knows of no limit. It says so, and holds more than it may.
func TestMemoryUnseen(t *testing.T) {
	needsUnified(t)
	up, c := startUpstream(t), newContainer(t)
	c.set(t, "memory.max", heldFirst)
	l := startLoopbackAgent(t, up, heldCache, func(name string, args ...string) *exec.Cmd { return c.containerCommand(t, mountNothing, name, args...) })
	if log := l.Stderr.String(); !strings.Contains(log, "reading the container's memory limit failed") {
		t.Errorf("the log does not tell that the limit is not known:\n%s", log)
	}
	sockets := l.floodSockets(t, up, c)
	t.Attr("held", fmt.Sprintf("%d bytes in sockets", sockets))
	if sockets <= heldSockets {
		t.Errorf("%d bytes lie in the sockets of an agent that takes what it likes, no more than in those of another", sockets)
	}
}

// floodSockets stops the agent and floods it until no more goes into its sockets, which hold the bytes that it tells, and floods
// it on while its upstream is silent.
func (l *loopbackAgent) floodSockets(t *testing.T, up *upstream, c cgroup) (sockets int64) {
	t.Helper()
	up.silent.Store(true)
	l.Signal(syscall.SIGSTOP)
	end := l.flood(t, 20_000)
	for was := int64(-1); sockets > was; {
		was = sockets
		time.Sleep(time.Second)
		sockets = c.field(t, "memory.stat", "sock")
	}
	end()
	l.Signal(syscall.SIGCONT)
	end = l.flood(t, 2000)
	time.Sleep(3 * time.Second)
	end()
	up.silent.Store(false)
	return sockets
}

// TestMemoryIsTooLittle has node-cache check name what does not fit in its container.
func TestMemoryIsTooLittle(t *testing.T) {
	needsUnified(t)
	for _, tt := range []struct {
		limit int64
		want  string
	}{
		{48 * mib, ""},
		{40 * mib, "the container's limit of 40 MiB leaves 11 MiB beside cache.size 16 MiB"},
	} {
		c := newContainer(t)
		c.set(t, "memory.max", tt.limit)
		file := new(loopbackAgent).configure(t, startUpstream(t), 16*mib)
		cmd := c.containerCommand(t, mountUnified, "node-cache", "check", file)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Run(); err != nil {
			t.Errorf("limit %d: %v", tt.limit, err)
		}
		if got := stderr.String(); !strings.Contains(got, tt.want) || (got != "") != (tt.want != "") {
			t.Errorf("limit %d: %q, want %q in it", tt.limit, got, tt.want)
		}
	}
}

// TestMemoryLimitHybrid starts an agent whose memory version 1 limits, while version 2 is there too. It is the last one:
// newHybrid says why.
func TestMemoryLimitHybrid(t *testing.T) {
	needsUnified(t)
	c := newHybrid(t, "kubepods/burstable/pod5f0c/0a1b")
	c.set(t, "memory.limit_in_bytes", 52*mib)
	startLoopbackAgent(t, startUpstream(t), 16*mib, c.hybridCommand).expectLimits(t, 52*mib, 16*mib)
}
