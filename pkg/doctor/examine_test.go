// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"bytes"
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/dataplane"
	"github.com/nodecache/node-cache/pkg/doctor"
	"github.com/nodecache/node-cache/pkg/rules"
)

var update = flag.Bool("update", false, "rewrite testdata")

const token = "0badcafe"

var (
	local4   = netip.MustParseAddr("169.254.20.10")
	local6   = netip.MustParseAddr("fd00::a")
	service4 = netip.MustParseAddr("10.96.0.10")
	errSeen  = errors.New("operation not permitted")
)

// configured is a node whose agent intercepts in mode m.
func configured(m rules.Mode) doctor.Config {
	c := doctor.Config{
		Intercept: true, Backend: "auto", Link: "nodelocaldns", Name: "kubernetes.default.svc.cluster.local.",
		Admin: netip.MustParseAddrPort("127.0.0.1:9253"),
		Rules: rules.Rules{Mode: m, Addresses: []netip.Addr{local4, local6}, Port: 53},
	}
	if m == rules.Transparent {
		c.Rules.Addresses, c.Rules.Services = []netip.Addr{local4}, []netip.Addr{service4}
	}
	return c
}

// well are the facts of a node on which all is as c wants it.
func well(c *doctor.Config) doctor.Facts {
	f := doctor.Facts{
		Rights: doctor.Rights{Agent: 4711},
		Status: "ready", Conntrack: doctor.Conntrack{Count: 812, Max: 262144},
		DataPlane: dataplane.Found{
			Proxy: dataplane.NFTables, Evidence: []string{"kube-proxy says that its mode is nftables"}, Backend: "nftables", Why: "kube-proxy uses it",
		},
		Kubelet: doctor.Kubelet{From: "clusterDNS in /var/lib/kubelet/config.yaml"}, Pods: map[string]int{},
	}
	held := doctor.Held{Backend: "nftables", State: rules.State{Present: true, Owner: token, Leases: map[netip.Addr]time.Duration{}}}
	for _, a := range c.Rules.Addresses {
		f.Addresses = append(f.Addresses, doctor.Address{Addr: a, Link: "nodelocaldns", Kind: "dummy", Alias: "node-cache " + token})
		at := netip.AddrPortFrom(a, 53)
		f.Sockets = append(f.Sockets,
			doctor.Socket{Local: at, PID: 4711, Program: "node-cache"}, doctor.Socket{TCP: true, Local: at, PID: 4711, Program: "node-cache"})
		f.Node = append(f.Node, byAgent(doctor.Probe{To: at, Own: true}), byAgent(doctor.Probe{To: at, TCP: true, Own: true}))
	}
	for _, l := range c.Rules.Leases() {
		held.State.Leases[l.Key] = 2600 * time.Millisecond
		f.Kubelet.DNS = append(f.Kubelet.DNS, l.Key.String())
		f.Pods[l.Key.String()] = 14
		to := netip.AddrPortFrom(l.Key, 53)
		asked := []doctor.Outcome{
			byAgent(doctor.Probe{To: to}), byAgent(doctor.Probe{To: to, TCP: true}),
			{Probe: doctor.Probe{To: to, Name: c.Name}, Answer: "NOERROR", Records: 1, Took: 190 * time.Microsecond},
		}
		f.Node, f.Pod = append(f.Node, asked...), append(f.Pod, asked...)
	}
	if c.Rules.Mode == rules.LinkLocal {
		to := netip.MustParseAddrPort("10.244.3.7:53")
		held.State.Fallback = []netip.AddrPort{to}
		for _, tcp := range []bool{false, true} {
			f.Fallback = append(f.Fallback, doctor.Outcome{
				Probe: doctor.Probe{To: to, TCP: tcp, Name: c.Name}, Answer: "NOERROR", Records: 1, Took: 1240 * time.Microsecond,
			})
		}
	}
	f.Held = []doctor.Held{held}
	return f
}

func byAgent(p doctor.Probe) doctor.Outcome {
	return doctor.Outcome{Probe: p, Answer: "NOERROR", Records: 1, Token: token, Took: 210 * time.Microsecond}
}

// become makes all outcomes but those to the agent's own sockets like o.
func become(list []doctor.Outcome, o doctor.Outcome) []doctor.Outcome {
	list = slices.Clone(list)
	for i := range list {
		if !list[i].Own {
			o.Probe = list[i].Probe
			list[i] = o
		}
	}
	return list
}

func silent() doctor.Outcome { return doctor.Outcome{Error: "no answer in 1s", Took: time.Second} }

// unserved makes the facts those of a node whose agent has gone.
func unserved(f *doctor.Facts) {
	f.Rights.Agent, f.Sockets, f.NoStatus = 0, nil, errors.New("connection refused")
	for i := range f.Node {
		if f.Node[i].Own {
			f.Node[i] = doctor.Outcome{Probe: f.Node[i].Probe, Error: "connection refused", Refused: true}
		}
	}
	f.Held[0].State.Leases = nil
}

func TestReport(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		mode   rules.Mode
		change func(*doctor.Config, *doctor.Facts)
		failed bool
	}{
		{name: "well", change: func(*doctor.Config, *doctor.Facts) {}},
		{name: "transparent", mode: rules.Transparent, change: func(*doctor.Config, *doctor.Facts) {}},
		{
			name: "killed", failed: true,
			change: func(_ *doctor.Config, f *doctor.Facts) {
				unserved(f)
				other := doctor.Outcome{Answer: "NXDOMAIN", Took: 1300 * time.Microsecond}
				f.Node, f.Pod = become(f.Node, other), become(f.Pod, other)
			},
		},
		{
			name: "never-started", failed: true,
			change: func(_ *doctor.Config, f *doctor.Facts) {
				unserved(f)
				f.Held, f.Addresses, f.Fallback = nil, nil, nil
				f.Node, f.Pod = become(f.Node, silent()), become(f.Pod, silent())
				f.Kubelet.DNS, f.Pods = []string{"10.96.0.10"}, map[string]int{"10.96.0.10": 12, "8.8.8.8": 1}
			},
		},
		{
			name: "policy", failed: true,
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Pod = become(f.Pod, silent())
				f.Drops = []doctor.Drop{
					{Where: "inet filter input", Rule: "ct state { invalid, untracked } drop"},
					{Where: "ip filter INPUT", Policy: true},
					{Where: "iptables-legacy", Rule: "iptables -t filter -A INPUT -i eth0 -j DROP"},
				}
			},
		},
		{
			name: "cilium", mode: rules.Transparent, failed: true,
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.DataPlane = dataplane.Found{
					Proxy: dataplane.Cilium, Early: true, Evidence: []string{"link cilium_host"}, Backend: "nftables", Why: "it needs no program",
					Note: "Transparent interception cannot work here.",
				}
				other := doctor.Outcome{Answer: "REFUSED", Took: time.Millisecond}
				f.Node, f.Pod = become(f.Node, other), become(f.Pod, other)
			},
		},
		{
			name: "no-rights",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Rights = doctor.Rights{Missing: []string{"NET_ADMIN"}}
				f.Held, f.NoHeld, f.Fallback = nil, []error{errSeen}, nil
				for i := range f.Node {
					f.Node[i].Unknown = "operation not permitted"
					if f.Node[i].Own {
						f.Node[i] = doctor.Outcome{Probe: f.Node[i].Probe, Error: "operation not permitted"}
					}
				}
				f.Pod, f.NoPod = nil, errors.New("needs the right NET_ADMIN")
				f.Kubelet, f.Pods = doctor.Kubelet{}, nil
			},
		},
		{
			name: "no-interception",
			change: func(c *doctor.Config, f *doctor.Facts) {
				*c = doctor.Config{Rules: rules.Rules{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: 1053}, Admin: c.Admin}
				at := netip.MustParseAddrPort("127.0.0.1:1053")
				*f = doctor.Facts{
					Status: "ready", Sockets: []doctor.Socket{
						{Local: netip.MustParseAddrPort("0.0.0.0:1053"), UID: 1000}, {TCP: true, Local: netip.MustParseAddrPort("[::]:1053"), UID: 1000},
					},
					Node:  []doctor.Outcome{byAgent(doctor.Probe{To: at, Own: true}), byAgent(doctor.Probe{To: at}), byAgent(doctor.Probe{To: at, TCP: true})},
					NoPod: errors.New("127.0.0.1 is for the node alone: no pod can ask there"), Conntrack: doctor.Conntrack{Err: errors.New("the kernel tracks nothing")},
				}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := configured(tt.mode)
			f := well(&c)
			tt.change(&c, &f)
			r := doctor.Examine(c, f)
			if r.Failed() != tt.failed {
				t.Errorf("Failed() = %t, want %t", r.Failed(), tt.failed)
			}
			var text, object bytes.Buffer
			if err := errors.Join(r.Text(&text, false), r.JSON(&object)); err != nil {
				t.Fatal(err)
			}
			golden(t, tt.name+".txt", text.Bytes())
			golden(t, tt.name+".json", object.Bytes())
			for _, l := range r.Lines {
				if (l.Verdict == doctor.Warn || l.Verdict == doctor.Fail) && l.Fix == "" {
					t.Errorf("%s %s: %s %q has no fix", l.Part, l.Check, l.Verdict, l.What)
				}
			}
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// TestChecks has what each single change makes of the report of a healthy node.
func TestChecks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		mode   rules.Mode
		change func(*doctor.Config, *doctor.Facts)
		want   []string // the lines that are not in the healthy report, without their fix
	}{
		{
			name:   "the agent has no right",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Rights.Lacks = []string{"NET_ADMIN"} },
			want:   []string{"fail agent's rights: process 4711 lacks NET_ADMIN"},
		},
		{
			name:   "the data plane is not known",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.NoDataPlane = errSeen },
			want:   []string{"skip data plane: not known: operation not permitted"},
		},
		{
			name: "the data plane is not seen",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.DataPlane = dataplane.Found{Backend: "nftables", Evidence: []string{"not looked at nftables: operation not permitted"}}
			},
			want: []string{"skip data plane: none is seen, but not looked at nftables: operation not permitted"},
		},
		{
			name: "a data plane before netfilter leaves link-local mode alone",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.DataPlane = dataplane.Found{Proxy: dataplane.Calico, Early: true, Note: "Link-local can.", Backend: "nftables", Why: "it needs no program"}
			},
			want: []string{"warn data plane: calico, before netfilter; backend auto is nftables: it needs no program"},
		},
		{
			name: "no data plane and a backend of one's own",
			change: func(c *doctor.Config, f *doctor.Facts) {
				c.Backend, f.DataPlane = "nftables", dataplane.Found{}
			},
			want: []string{"ok data plane: nothing carries Services here"},
		},
		{
			name: "an address on a second link",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Addresses = append(f.Addresses, doctor.Address{Addr: local4, Link: "eth0"})
			},
			want: []string{`warn 169.254.20.10: on link nodelocaldns (dummy), alias "node-cache 0badcafe", and on link eth0`},
		},
		{
			name:   "an address of another program's",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Addresses[1].Alias = "" },
			want:   []string{"warn fd00::a: on link nodelocaldns (dummy): not made by an agent"},
		},
		{
			name: "an address on lo",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Addresses[1] = doctor.Address{Addr: local6, Link: "lo", Kind: "device"}
			},
			want: []string{"ok fd00::a: on link lo (device)"},
		},
		{
			name:   "addresses are not known",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.NoAddress = errSeen },
			want:   []string{"skip addresses: not known: operation not permitted"},
		},
		{
			name: "nobody listens over TCP",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Sockets = slices.DeleteFunc(f.Sockets, func(s doctor.Socket) bool { return s.TCP && s.Local.Addr() == local4 })
			},
			want: []string{"fail listener 169.254.20.10: node-cache (process 4711), but nobody over tcp"},
		},
		{
			name: "two listen",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Sockets = append(f.Sockets, doctor.Socket{Local: netip.MustParseAddrPort("0.0.0.0:53"), UID: 65534})
			},
			want: []string{"warn listener 169.254.20.10: node-cache (process 4711) and a process of user 65534: each gets a part of the queries"},
		},
		{
			name:   "sockets are not known",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.NoSockets = errSeen },
			want:   []string{"skip listener: not known: operation not permitted"},
		},
		{
			name:   "the agent is not ready",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Status = "not ready: the cluster zone is not in sync" },
			want:   []string{"fail status page: the agent says: not ready: the cluster zone is not in sync"},
		},
		{
			name:   "no status page",
			change: func(c *doctor.Config, _ *doctor.Facts) { c.Admin = netip.AddrPort{} },
			want:   []string{"skip status page: admin.address is empty"},
		},
		{
			name:   "rules of two backends",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Held = append(f.Held, doctor.Held{Backend: "iptables-nft"}) },
			want:   []string{"warn rules: of nftables and of iptables-nft"},
		},
		{
			name:   "one family is not leased",
			change: func(_ *doctor.Config, f *doctor.Facts) { delete(f.Held[0].State.Leases, local6) },
			want:   []string{"fail lease fd00::a: not held: the agent does not answer its own queries, and others get them"},
		},
		{
			name: "the Service is not known", mode: rules.Transparent,
			change: func(c *doctor.Config, f *doctor.Facts) {
				c.Rules.Services, f.Held[0].State.Leases, f.Pod, f.Pods = nil, nil, nil, nil
				f.Node, f.NoPod, f.Kubelet = f.Node[:2], errors.New("there is no address to ask"), doctor.Kubelet{}
			},
			want: []string{
				"fail lease: no lease tells the address of the DNS service, and neither does the configuration",
				"skip conntrack: the agent answered nothing", "skip pod: there is no address to ask",
				"skip kubelet: not to be seen from here", "skip pods: none is to be seen",
			},
		},
		{
			name:   "the table of connections is nearly full",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Conntrack = doctor.Conntrack{Count: 95, Max: 100} },
			want:   []string{"warn conntrack table: 95 of 100 entries: what is tracked may be dropped"},
		},
		{
			name:   "the table of connections has no end",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Conntrack = doctor.Conntrack{Count: 95} },
			want:   []string{"ok conntrack table: 95 entries, no limit"},
		},
		{
			name:   "the agent hangs and has its lease still",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Node[0], f.Node[4] = lose(f.Node[0]), lose(f.Node[4]) },
			want: []string{
				"fail socket 169.254.20.10 udp: no answer in 1s (udp)", "ok socket 169.254.20.10 tcp: agent 0badcafe (tcp 210µs)",
				"fail 169.254.20.10 udp: nobody answers: no answer in 1s (udp)", "ok 169.254.20.10 tcp: agent 0badcafe (tcp 210µs)",
				"ok conntrack: 0 entries for 3 queries to the agent",
			},
		},
		{
			name:   "another program has the address",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Node[0].Token, f.Node[0].Answer = "", "REFUSED" },
			want:   []string{"fail socket 169.254.20.10 udp: another program answers there: REFUSED (udp 210µs)", "ok socket 169.254.20.10 tcp: agent 0badcafe (tcp 210µs)"},
		},
		{
			name:   "another agent answers",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Pod[0].Token = "other" },
			want: []string{
				"warn 169.254.20.10 udp: agent other answers, and the rules are those of agent 0badcafe (udp 210µs)",
				"ok 169.254.20.10 tcp: agent 0badcafe (tcp 210µs)",
				"ok conntrack: 0 entries for 3 queries to the agent",
			},
		},
		{
			name: "packets are lost between lease and fallback",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				delete(f.Held[0].State.Leases, local4)
				f.Pod[1], f.Pod[2] = lose(f.Pod[1]), lose(f.Pod[2])
			},
			want: []string{
				"fail lease 169.254.20.10: not held: the agent does not answer its own queries, and others get them",
				"ok 169.254.20.10 udp: agent 0badcafe (udp 210µs)", "fail 169.254.20.10 tcp: nobody answers: no answer in 1s (tcp)",
				"ok conntrack: 0 entries for 3 queries to the agent", "fail name at 169.254.20.10: kubernetes.default.svc.cluster.local: no answer in 1s",
			},
		},
		{
			name: "a fallback that answers names only",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				delete(f.Held[0].State.Leases, local4)
				f.Pod[0], f.Pod[1] = lose(f.Pod[0]), lose(f.Pod[1])
			},
			want: []string{
				"fail lease 169.254.20.10: not held: the agent does not answer its own queries, and others get them",
				"warn 169.254.20.10: the central DNS answers names, as the agent has no lease (udp, tcp)",
				"ok conntrack: 0 entries for 2 queries to the agent",
			},
		},
		{
			name:   "packets are tracked",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Pod[0].Tracked = true },
			want:   []string{"fail conntrack: 1 entries for 4 queries to the agent"},
		},
		{
			name: "packets are tracked, as they must be", mode: rules.Transparent,
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Held[0].Backend = "iptables-nft"
				f.Pod[0].Tracked, f.Pod[1].Tracked = true, true
			},
			want: []string{
				"ok lease 10.96.0.10: held, 2.6s left (iptables-nft, agent 0badcafe)",
				"warn conntrack: 2 entries for 2 queries to the agent: iptables cannot rewrite without tracking",
			},
		},
		{
			name:   "whether packets are tracked is not known",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Pod[0].Unknown = "operation not permitted" },
			want:   []string{"skip conntrack: not known: operation not permitted"},
		},
		{
			name: "the name of the cluster",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				for i, o := range f.Pod {
					if o.Name != "" {
						f.Pod[i] = doctor.Outcome{Probe: o.Probe, Answer: map[bool]string{true: "NXDOMAIN", false: "SERVFAIL"}[o.To.Addr().Is4()]}
					}
				}
			},
			want: []string{
				"warn name at 169.254.20.10: kubernetes.default.svc.cluster.local has no address: NXDOMAIN",
				"fail name at fd00::a: kubernetes.default.svc.cluster.local: SERVFAIL",
			},
		},
		{
			name:   "who drops is not known",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.NoDrop = errSeen },
			want:   []string{"skip dropped by: not known: operation not permitted"},
		},
		{
			name: "one fallback of two is silent",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				second := f.Fallback[0]
				second.To, second.Answer, second.Error = netip.MustParseAddrPort("10.244.4.7:53"), "", "no answer in 1s"
				f.Fallback = append(f.Fallback, second)
			},
			want: []string{"warn 10.244.4.7:53 udp: no answer: no answer in 1s"},
		},
		{
			name:   "the only fallback serves others over TCP",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Fallback[1].Answer = "REFUSED" },
			want:   []string{"fail 10.244.3.7:53 tcp: REFUSED"},
		},
		{
			name:   "no fallback",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Fallback, f.Held[0].State.Fallback = nil, nil },
			want:   []string{"warn fallback: none: while the agent does not answer, nobody does"},
		},
		{
			name:   "the kubelet cannot be read",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Kubelet = doctor.Kubelet{Err: errSeen} },
			want:   []string{"skip kubelet: not known: operation not permitted"},
		},
		{
			name:   "the kubelet hands out nothing",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Kubelet = doctor.Kubelet{From: "its flags"} },
			want:   []string{"warn kubelet: hands out no nameserver of the cluster (its flags)"},
		},
		{
			name: "the kubelet hands out the agent, which listens to the Service", mode: rules.Transparent,
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Kubelet = doctor.Kubelet{DNS: []string{"169.254.20.10"}, From: "its flags"}
			},
			want: []string{"warn kubelet: hands out 169.254.20.10, not 10.96.0.10 (its flags)"},
		},
		{
			name:   "some pods ask others",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Pods["10.96.0.10"] = 1 },
			want:   []string{"ok pods: 14 pods with nameserver 169.254.20.10, 14 pods with nameserver fd00::a, 1 pod with nameserver 10.96.0.10"},
		},
		{
			name:   "pods cannot be seen",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.NoPods = errSeen },
			want:   []string{"skip pods: operation not permitted"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := configured(tt.mode)
			f := well(&c)
			before := lines(doctor.Examine(c, f))
			tt.change(&c, &f)
			var got []string
			for _, l := range lines(doctor.Examine(c, f)) {
				if !slices.Contains(before, l) {
					got = append(got, l)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("new lines (-want +got):\n%s", diff)
			}
		})
	}
}

// lose is o without its answer.
func lose(o doctor.Outcome) doctor.Outcome {
	lost := silent()
	lost.Probe = o.Probe
	return lost
}

func lines(r doctor.Report) []string {
	lines := make([]string, 0, len(r.Lines))
	for _, l := range r.Lines {
		lines = append(lines, l.Verdict.String()+" "+l.Check+": "+l.What)
	}
	return lines
}

func TestTextColours(t *testing.T) {
	t.Parallel()
	r := doctor.Report{Title: "t", Lines: []doctor.Line{{Part: "p", Check: "a", Verdict: doctor.Fail, What: "w", Fix: "f"}, {Part: "p", Check: "bcd", What: "x"}}}
	var plain, coloured strings.Builder
	if err := errors.Join(r.Text(&plain, false), r.Text(&coloured, true)); err != nil {
		t.Fatal(err)
	}
	want := "t\n\np\n  fail  a    w\n             fix: f\n  ok    bcd  x\n\n1 ok, 0 skipped, 0 to look at, 1 failed\n"
	if diff := cmp.Diff(want, plain.String()); diff != "" {
		t.Errorf("without colours (-want +got):\n%s", diff)
	}
	want = "t\n\np\n  \x1b[31mfail\x1b[0m  a    w\n             fix: f\n  \x1b[32mok  \x1b[0m  bcd  x\n\n1 ok, 0 skipped, 0 to look at, 1 failed\n"
	if diff := cmp.Diff(want, coloured.String()); diff != "" {
		t.Errorf("with colours (-want +got):\n%s", diff)
	}
}
