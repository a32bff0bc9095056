// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// write replaces a file atomically.
func write(t *testing.T, path, text string) {
	t.Helper()
	assert.NoError(t, os.WriteFile(path+".new", []byte(text), 0o644))
	assert.NoError(t, os.Rename(path+".new", path))
}

// TestResolvConf compares with a file the servers of each resolv.conf, and what is logged.
func TestResolvConf(t *testing.T) {
	t.Parallel()
	assert.GoldenPairs(t, "testdata/resolvconf.txtar", func(t *testing.T, _, text string) string {
		t.Helper()
		dir := t.TempDir()
		path, systemd := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "systemd.conf")
		text, list, found := strings.Cut(text, "---\n")
		write(t, path, text)
		if found {
			write(t, systemd, list)
		}
		log, lines := logger()
		p := newPool(t, upstream.Config{
			Targets: []upstream.Target{{ResolvConf: path}}, SystemdResolvConf: systemd, Log: log,
			Self: func(addr netip.AddrPort) bool { return addr.String() == "169.254.20.10:53" },
		})
		got := servers(p)
		if len(got) == 0 {
			assert.Equal(t, "outcome", "no-upstream", ask(t, p))
		}
		return strings.ReplaceAll(strings.Join(append(got, lines()...), "\n")+"\n", path, "FILE")
	})
}

// A list may mix files and addresses, in order.
func TestResolvConfAmongAddresses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	write(t, path, "nameserver 192.0.2.1\nnameserver 192.0.2.2\n")
	p := newPool(t, upstream.Config{Targets: []upstream.Target{
		target("tcp", addrC), {ResolvConf: path}, target("udp", addrB), target("udp", addrC),
	}})
	want := []string{"tcp 192.0.2.3:53", "udp 192.0.2.1:53", "udp 192.0.2.2:53", "udp 192.0.2.3:53"}
	assert.Same(t, "servers", want, servers(p))
}

// A watchedPool is a pool with a resolv.conf that Run watches.
type watchedPool struct {
	*upstream.Pool
	path, systemd string
	lines         func() []string
}

func follow(t *testing.T, path, systemd string) watchedPool {
	t.Helper()
	log, lines := logger()
	good := upstreamtest.New(upstreamtest.Always(one("192.0.2.10")))
	p := newPool(t, upstream.Config{
		Targets: []upstream.Target{{ResolvConf: path}}, SystemdResolvConf: systemd, Log: log,
		Dial: upstreamtest.Network{addrA: good, addrB: good, addrC: good}.Dial,
	})
	run(t, p)
	return watchedPool{Pool: p, path: path, systemd: systemd, lines: lines}
}

func (w watchedPool) becomes(t *testing.T, want ...string) {
	t.Helper()
	proctest.Eventually(t, time.Minute, fmt.Sprintf("servers %v", want), func() bool { return slices.Equal(servers(w.Pool), want) })
}

func (w watchedPool) warns(t *testing.T, about string) {
	t.Helper()
	proctest.Eventually(t, time.Minute, "a warning: "+about, func() bool { return strings.Contains(strings.Join(w.lines(), "\n"), about) })
}

func TestResolvConfReload(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "resolv.conf")
	write(t, path, "nameserver 192.0.2.1\nnameserver 192.0.2.2\n")
	f := follow(t, path, filepath.Join(dir, "none"))
	for range 2 {
		assert.Equal(t, "answer", "192.0.2.10", ask(t, f.Pool))
	}
	known := f.Stats().Servers[1]
	if known.Requests == 0 || known.SRTT == 0 {
		t.Fatalf("%d requests to the second, srtt %v, want it measured", known.Requests, known.SRTT)
	}

	write(t, path, "nameserver 192.0.2.3\nnameserver 192.0.2.2\n")
	f.becomes(t, "udp 192.0.2.3:53", "udp 192.0.2.2:53")
	assert.Same(t, "what was known of the one that stays", known, f.Stats().Servers[1], cmpopts.EquateComparable(netip.AddrPort{}))

	assert.NoError(t, os.WriteFile(path, nil, 0o644))
	f.warns(t, "WARN resolv.conf names no usable server, keeping its last servers")
	assert.NoError(t, errors.Join(syscall.Mkfifo(path+".pipe", 0o600), os.Rename(path+".pipe", path)))
	f.warns(t, "WARN resolv.conf unreadable, keeping its last servers")
	assert.NoError(t, os.Remove(path))
	f.becomes(t, "udp 192.0.2.3:53", "udp 192.0.2.2:53")

	write(t, path, "nameserver 192.0.2.1\n")
	f.becomes(t, "udp 192.0.2.1:53")
	if got := strings.Count(strings.Join(f.lines(), "\n"), "WARN"); got != 2 {
		t.Errorf("%d warnings, want one per fault:\n%s", got, strings.Join(f.lines(), "\n"))
	}
}

// A file becomes the stub's, then the list behind the stub changes.
func TestResolvConfStubReload(t *testing.T) {
	t.Parallel()
	path, systemd := filepath.Join(t.TempDir(), "resolv.conf"), filepath.Join(t.TempDir(), "resolv.conf")
	write(t, path, "nameserver 192.0.2.1\n")
	write(t, systemd, "nameserver 192.0.2.2\n")
	f := follow(t, path, systemd)
	write(t, path, "nameserver 127.0.0.53\n")
	f.becomes(t, "udp 192.0.2.2:53")
	write(t, systemd, "nameserver 192.0.2.3\n")
	f.becomes(t, "udp 192.0.2.3:53")
}

// After a panic while reading a file, the previous servers stay, and the file is read again later.
func TestResolvConfPanic(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	write(t, path, "nameserver 192.0.2.1\n")
	var trap atomic.Bool
	log, lines := logger()
	p := newPool(t, upstream.Config{
		Targets: []upstream.Target{{ResolvConf: path}}, SystemdResolvConf: path + ".none", Log: log,
		Self: func(netip.AddrPort) bool {
			if trap.Load() {
				panic("a trap")
			}
			return false
		},
	})
	run(t, p)
	trap.Store(true)
	write(t, path, "nameserver 192.0.2.2\n")
	proctest.Eventually(t, time.Minute, "a panic", func() bool { return p.Stats().Panics > 0 })
	f := watchedPool{Pool: p, path: path, lines: lines}
	f.becomes(t, "udp 192.0.2.1:53")
	trap.Store(false)
	f.becomes(t, "udp 192.0.2.2:53")
	if got := strings.Join(lines(), "\n"); !strings.Contains(got, "recovered from a panic") {
		t.Errorf("the log does not say so:\n%s", got)
	}
}

// A closeNotifier notifies when it is closed.
type closeNotifier struct {
	net.Conn
	onClose func()
}

func (c *closeNotifier) Close() error {
	c.onClose()
	return c.Conn.Close()
}
