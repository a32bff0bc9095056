// SPDX-License-Identifier: Apache-2.0

package hits

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

const resolvConf = `nameserver 169.254.20.10
nameserver fd00:20::10
search shop.svc.cluster.local svc.cluster.local cluster.local
options ndots:5 attempts:1 timeout:5
`

// A client looks names up in a pod. It returns what it found.
type client struct {
	name string
	want string
	run  func(t *testing.T, p *pod) string
}

// TestClients has clients of all kinds accept the replies of the kernel.
func TestClients(t *testing.T) {
	needs := map[string]string{
		"gcc": "gcc", "musl-gcc": "musl-tools", "dig": "bind9-dnsutils", "dnsperf": "dnsperf", "unbound": "unbound", "getent": "libc-bin",
	}
	for program, debian := range needs {
		needs[program] = proctest.FindProgram(t, program, debian)
	}
	n := startNode(t)
	if n == nil {
		return
	}
	mountOver(t, "/etc/resolv.conf", resolvConf)
	mountOver(t, "/etc/nsswitch.conf", "hosts: files dns\n")
	for _, c := range clients(t, needs) {
		for _, p := range n.pods[:2] {
			t.Run(c.name+" in a "+p.name+" pod", func(t *testing.T) {
				for range 50 {
					before := n.received()
					assert.Equal(t, "found", c.want, c.run(t, p))
					if n.received() == before {
						return
					}
				}
				t.Error("the kernel never answered all of its queries")
			})
		}
	}
	for _, p := range n.pods[:2] {
		t.Run("unbound in a "+p.name+" pod", func(t *testing.T) { n.testForwarder(t, p, needs) })
		t.Run("dnsperf in a "+p.name+" pod", func(t *testing.T) { n.testLoad(t, p, needs["dnsperf"]) })
	}
}

// clients are those whose queries all have answers in memory.
func clients(t *testing.T, programs map[string]string) []client {
	t.Helper()
	const found = "www.test 192.0.2.1 192.0.2.2 192.0.2.3 2001:db8::1 2001:db8::2\nweb 10.96.0.7 fd00:96::7\nabsent.test no such name\n"
	list := []client{
		{"getent", "192.0.2.1 192.0.2.2 192.0.2.3 2001:db8::1 2001:db8::2", func(t *testing.T, p *pod) string {
			t.Helper()
			addresses := regexp.MustCompile(`(?m)^[0-9a-f.:]+`).FindAllString(output(t, p, programs["getent"], "ahosts", "www.test"), -1)
			return words(strings.Join(addresses, " "))
		}},
		{"Go", "10.96.0.7 fd00:96::7", func(t *testing.T, p *pod) string {
			t.Helper()
			r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return p.Dial(ctx, network, netip.AddrPortFrom(agentAddrs[0], 53).String())
			}}
			hosts, err := r.LookupHost(t.Context(), "web.shop.svc.cluster.local.")
			assert.NoError(t, err)
			return words(strings.Join(hosts, " "))
		}},
	}
	for libc, compile := range map[string][]string{"glibc": {programs["gcc"]}, "musl": {programs["musl-gcc"], "-static"}} {
		lookup := filepath.Join(t.TempDir(), "lookup-"+libc)
		compile = append(compile, "-O1", "-o", lookup, "../../e2e/testdata/lookup.c")
		if out, err := exec.CommandContext(t.Context(), compile[0], compile[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("compiling for %s: %v\n%s", libc, err, out)
		}
		list = append(list, client{"getaddrinfo of " + libc, found, func(t *testing.T, p *pod) string {
			t.Helper()
			var lines strings.Builder
			for line := range strings.Lines(output(t, p, lookup, "www.test", "web", "absent.test")) {
				name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
				if net.ParseIP(strings.Fields(rest)[0]) != nil {
					rest = words(rest)
				}
				lines.WriteString(name + " " + rest + "\n")
			}
			return lines.String()
		}})
	}
	for _, server := range agentAddrs {
		for _, option := range []string{"+noedns", "+edns", "+dnssec"} {
			name, args := "dig "+option+" @"+server.String(), append(digOptions(), option, "@"+server.String(), "www.test", "A")
			list = append(list, client{name, "192.0.2.1 192.0.2.2 192.0.2.3", func(t *testing.T, p *pod) string {
				t.Helper()
				return words(output(t, p, programs["dig"], args...))
			}})
		}
	}
	return list
}

// digOptions make dig ask once, and no question that only the process answers.
func digOptions() []string { return []string{"+short", "+nocookie", "+timeout=5", "+tries=1"} }

// words sorts words.
func words(text string) string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(strings.Fields(text)))), " ")
}

func output(t *testing.T, p *pod, name string, args ...string) string {
	t.Helper()
	out, err := p.Output(t.Context(), name, args...)
	assert.NoError(t, err)
	return out
}

// testForwarder has unbound forward to the agent, without a cache of its own.
func (n *node) testForwarder(t *testing.T, p *pod, programs map[string]string) {
	t.Helper()
	folder := t.TempDir()
	config := proctest.WriteFile(t, filepath.Join(folder, "unbound.conf"), fmt.Sprintf(`server:
	directory: %q
	username: ""
	chroot: ""
	pidfile: ""
	use-syslog: no
	interface: 127.0.0.1
	module-config: iterator
	cache-max-ttl: 0
	cache-max-negative-ttl: 0
	use-caps-for-id: yes
	local-zone: test. nodefault
remote-control:
	control-enable: no
forward-zone:
	name: "."
	forward-addr: 169.254.20.10
`, folder))
	proctest.Start(t, "unbound", p.Command(t.Context(), programs["unbound"], "-d", "-c", config))
	const want = "192.0.2.1 192.0.2.2 192.0.2.3"
	ask := func() string {
		out, _ := p.Output(t.Context(), programs["dig"], append(digOptions(), "@127.0.0.1", "www.test", "A")...)
		return words(out)
	}
	n.await(t, "unbound", func() bool { return ask() == want })
	for range 50 {
		before := n.received()
		assert.Equal(t, "found", want, ask())
		if n.received() == before {
			return
		}
	}
	t.Error("the kernel never answered unbound")
}

// testLoad has dnsperf ask as fast as it can.
func (n *node) testLoad(t *testing.T, p *pod, dnsperf string) {
	t.Helper()
	var names strings.Builder
	for _, s := range subjects() {
		if s.taken && !strings.Contains(s.name, `\`) && s.rrtype < 256 && !strings.HasPrefix(s.name, "t") {
			fmt.Fprintf(&names, "%s %s\n", s.name, dns.Type(s.rrtype))
		}
	}
	file := proctest.WriteFile(t, filepath.Join(t.TempDir(), "names"), names.String())
	before := n.received()
	out := output(t, p, dnsperf, "-s", agentAddrs[0].String(), "-d", file, "-l", "2", "-c", "2", "-q", "50")
	passed := int(n.received() - before)
	value := func(label string) int {
		m := regexp.MustCompile(label + `:\s+(\d+)`).FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("dnsperf printed no %q:\n%s", label, out)
		}
		v, err := strconv.Atoi(m[1])
		assert.NoError(t, err)
		return v
	}
	completed := value("Queries completed")
	assert.Equal(t, "lost queries", 0, value("Queries lost"))
	if passed*4 > completed {
		t.Errorf("the kernel passed %d of %d queries", passed, completed)
	}
	proctest.Figure(t, "dnsperf in a %s pod: %d queries, %d passed to the process", p.name, completed, passed)
}

// mountOver mounts a file with the text over another.
func mountOver(t *testing.T, target, text string) {
	t.Helper()
	file := proctest.WriteFile(t, filepath.Join(t.TempDir(), filepath.Base(target)), text)
	behind, err := filepath.EvalSymlinks(target)
	assert.NoError(t, err)
	assert.NoError(t, syscall.Mount(file, behind, "", syscall.MS_BIND, ""))
	t.Cleanup(func() { _ = syscall.Unmount(behind, syscall.MNT_DETACH) })
}
