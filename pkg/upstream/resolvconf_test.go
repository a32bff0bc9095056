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

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// write replaces a file atomically.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestResolvConf(t *testing.T) {
	t.Parallel()
	many := ""
	for i := range 20 {
		many += fmt.Sprintf("nameserver 192.0.2.%d\n", i+1)
	}
	tests := []struct {
		name    string
		text    string
		systemd string // empty: no such file
		want    []string
		log     []string
	}{
		{
			name: "a usual one",
			text: "# from DHCP\nsearch example.\nnameserver 192.0.2.1\n; nameserver 192.0.2.9\nnameserver\t192.0.2.2 # second\noptions ndots:5\n",
			want: []string{"udp 192.0.2.1:53", "udp 192.0.2.2:53"},
		},
		{
			name: "IPv6, with a zone",
			text: "nameserver 2001:db8::1\nnameserver fe80::1%eth0\n",
			want: []string{"udp [2001:db8::1]:53", "udp [fe80::1%eth0]:53"},
		},
		{
			name: "an IPv4 address in IPv6 clothes is the same",
			text: "nameserver 192.0.2.1\nnameserver ::ffff:192.0.2.1\n",
			want: []string{"udp 192.0.2.1:53"},
		},
		{
			name: "not an address",
			text: "nameserver dns.example.\nnameserver\nnameserver 192.0.2.1\n",
			want: []string{"udp 192.0.2.1:53"},
			log:  []string{"WARN nameserver excluded reason=not an address path=FILE upstream=dns.example."},
		},
		{
			name: "ourselves",
			text: "nameserver 169.254.20.10\nnameserver 192.0.2.1\n",
			want: []string{"udp 192.0.2.1:53"},
			log:  []string{"WARN nameserver excluded reason=own address path=FILE upstream=169.254.20.10:53"},
		},
		{
			name: "only ourselves",
			text: "nameserver 169.254.20.10\n",
			log: []string{
				"WARN nameserver excluded reason=own address path=FILE upstream=169.254.20.10:53",
				"WARN no upstream in any resolv.conf",
			},
		},
		{
			name: "empty",
			log:  []string{"WARN no upstream in any resolv.conf"},
		},
		{
			name:    "the stub of systemd-resolved",
			text:    "nameserver 127.0.0.53\noptions edns0 trust-ad\n",
			systemd: "nameserver 192.0.2.7\n",
			want:    []string{"udp 192.0.2.7:53"},
		},
		{
			name:    "its other stub, and ourselves behind it",
			text:    "nameserver 127.0.0.54\n",
			systemd: "nameserver 169.254.20.10\nnameserver 192.0.2.7\n",
			want:    []string{"udp 192.0.2.7:53"},
			log:     []string{"WARN nameserver excluded reason=own address path=FILE upstream=169.254.20.10:53"},
		},
		{
			name:    "the stub among others",
			text:    "nameserver 127.0.0.53\nnameserver 192.0.2.1\n",
			systemd: "nameserver 192.0.2.7\n",
			want:    []string{"udp 127.0.0.53:53", "udp 192.0.2.1:53"},
		},
		{
			name: "the stub without its list",
			text: "nameserver 127.0.0.53\n",
			want: []string{"udp 127.0.0.53:53"},
		},
		{
			name: "too many",
			text: many,
			want: func() (first []string) {
				for i := range 16 {
					first = append(first, fmt.Sprintf("udp 192.0.2.%d:53", i+1))
				}
				return first
			}(),
			log: func() (rest []string) {
				for i := range 4 {
					rest = append(rest, fmt.Sprintf("WARN nameserver excluded reason=too many path=FILE upstream=192.0.2.%d:53", i+17))
				}
				return rest
			}(),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path, systemd := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "systemd.conf")
			write(t, path, tt.text)
			if tt.systemd != "" {
				write(t, systemd, tt.systemd)
			}
			log, lines := logger()
			p := newPool(t, upstream.Config{
				Targets: []upstream.Target{{ResolvConf: path}}, SystemdResolvConf: systemd, Log: log,
				Self: func(addr netip.AddrPort) bool { return addr.String() == "169.254.20.10:53" },
			})
			if diff := cmp.Diff(tt.want, servers(p)); diff != "" {
				t.Errorf("servers (-want +got):\n%s", diff)
			}
			got := lines()
			for i, line := range got {
				got[i] = strings.ReplaceAll(line, path, "FILE")
			}
			if diff := cmp.Diff(tt.log, got); diff != "" {
				t.Errorf("log (-want +got):\n%s", diff)
			}
			if len(tt.want) == 0 {
				if got := ask(t, p); got != "no-upstream" {
					t.Errorf("outcome %q, want no-upstream", got)
				}
			}
		})
	}
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
	if diff := cmp.Diff(want, servers(p)); diff != "" {
		t.Errorf("servers (-want +got):\n%s", diff)
	}
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
	proctest.Eventually(t, 10*time.Second, fmt.Sprintf("servers %v", want), func() bool { return slices.Equal(servers(w.Pool), want) })
}

func (w watchedPool) warns(t *testing.T, about string) {
	t.Helper()
	proctest.Eventually(t, 10*time.Second, "a warning: "+about, func() bool { return strings.Contains(strings.Join(w.lines(), "\n"), about) })
}

func TestResolvConfReload(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "resolv.conf")
	write(t, path, "nameserver 192.0.2.1\nnameserver 192.0.2.2\n")
	f := follow(t, path, filepath.Join(dir, "none"))
	for range 2 {
		if got := ask(t, f.Pool); got != "192.0.2.10" {
			t.Errorf("answer %q, want 192.0.2.10", got)
		}
	}
	known := f.Stats().Servers[1]
	if known.Requests == 0 || known.SRTT == 0 {
		t.Fatalf("%d requests to the second, srtt %v, want it measured", known.Requests, known.SRTT)
	}

	write(t, path, "nameserver 192.0.2.3\nnameserver 192.0.2.2\n")
	f.becomes(t, "udp 192.0.2.3:53", "udp 192.0.2.2:53")
	if diff := cmp.Diff(known, f.Stats().Servers[1], cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Errorf("what was known of the one that stays (-want +got):\n%s", diff)
	}

	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	f.warns(t, "WARN resolv.conf names no usable server, keeping its last servers")
	if err := errors.Join(syscall.Mkfifo(path+".pipe", 0o600), os.Rename(path+".pipe", path)); err != nil {
		t.Fatal(err)
	}
	f.warns(t, "WARN resolv.conf unreadable, keeping its last servers")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
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
	proctest.Eventually(t, 10*time.Second, "a panic", func() bool { return p.Stats().Panics > 0 })
	f := watchedPool{Pool: p, path: path, lines: lines}
	f.becomes(t, "udp 192.0.2.1:53")
	trap.Store(false)
	f.becomes(t, "udp 192.0.2.2:53")
	if got := strings.Join(lines(), "\n"); !strings.Contains(got, "panic recovered") {
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
