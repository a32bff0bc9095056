// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/dataplane"
	"github.com/nodecache/node-cache/pkg/doctor"
	"github.com/nodecache/node-cache/pkg/rules"
	"github.com/nodecache/node-cache/pkg/sockets"
)

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
			name:   "the agent lacks a capability",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.AgentMissing = []string{"NET_ADMIN"} },
			want:   []string{"fail agent capabilities: process 4711 lacks NET_ADMIN"},
		},
		{
			name:   "the data plane is not known",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.DataPlaneErr = errSeen },
			want:   []string{"skip data plane: unknown: operation not permitted"},
		},
		{
			name: "the data plane is not seen",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.DataPlane = dataplane.Found{Backend: "nftables", Evidence: []string{"cannot read nftables: operation not permitted"}}
			},
			want: []string{"skip data plane: none found, but cannot read nftables: operation not permitted"},
		},
		{
			name: "a data plane before netfilter leaves link-local mode alone",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.DataPlane = dataplane.Found{Proxy: dataplane.Calico, Early: true, Note: "Link-local can.", Backend: "nftables", Reason: "it needs no program"}
			},
			want: []string{"warn data plane: calico, before netfilter; backend auto is nftables: it needs no program"},
		},
		{
			name: "no data plane and a backend of one's own",
			change: func(c *doctor.Config, f *doctor.Facts) {
				c.Backend, f.DataPlane = "nftables", dataplane.Found{}
			},
			want: []string{"ok data plane: no data plane for Services found"},
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
			want:   []string{"warn fd00::a: on link nodelocaldns (dummy): not created by an agent"},
		},
		{
			name: "an address on a link that the agent does not manage",
			change: func(c *doctor.Config, f *doctor.Facts) {
				c.ManageLink, f.Addresses = false, []doctor.Address{{Addr: local4, Link: "eth0", Kind: "device"}}
			},
			want: []string{"ok 169.254.20.10: on link eth0 (device)", "fail fd00::a: on no link of this node"},
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
			change: func(_ *doctor.Config, f *doctor.Facts) { f.AddressErr = errSeen },
			want:   []string{"skip addresses: unknown: operation not permitted"},
		},
		{
			name: "no process listens over TCP",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Sockets = slices.DeleteFunc(f.Sockets, func(s sockets.Socket) bool { return s.TCP && s.Local.Addr() == local4 })
			},
			want: []string{"fail listener 169.254.20.10: node-cache (process 4711), but no process over tcp"},
		},
		{
			name: "two listen",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Sockets = append(f.Sockets, sockets.Socket{Local: netip.MustParseAddrPort("0.0.0.0:53"), UID: 65534})
			},
			want: []string{"warn listener 169.254.20.10: node-cache (process 4711) and a process of user 65534: they share the address and port"},
		},
		{
			name:   "sockets are not known",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.SocketsErr = errSeen },
			want:   []string{"skip listener: unknown: operation not permitted"},
		},
		{
			name:   "the agent is not ready",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Status = "not ready: the cluster zone is not synced" },
			want:   []string{"fail status page: the agent reports: not ready: the cluster zone is not synced"},
		},
		{
			name:   "no status page",
			change: func(c *doctor.Config, _ *doctor.Facts) { c.Admin = netip.AddrPort{} },
			want:   []string{"skip status page: admin.address is empty"},
		},
		{
			name: "rules of two backends",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Backends = append(f.Backends, doctor.BackendState{Backend: "iptables-nft"})
			},
			want: []string{"warn rules: in nftables and in iptables-nft"},
		},
		{
			name:   "one family is not leased",
			change: func(_ *doctor.Config, f *doctor.Facts) { delete(f.Backends[0].State.Leases, local6) },
			want:   []string{"fail lease fd00::a: not held: the agent does not answer its self-query, so other servers get the queries"},
		},
		{
			name: "the Service is not known", mode: rules.Transparent,
			change: func(c *doctor.Config, f *doctor.Facts) {
				c.Rules.Services, f.Backends[0].State.Leases, f.Pod, f.Pods = nil, nil, nil, nil
				f.Node, f.PodErr, f.Kubelet = f.Node[:2], errors.New("there is no address to query"), doctor.Kubelet{}
			},
			want: []string{
				"fail lease: neither a lease nor the configuration has the address of the DNS service",
				"skip conntrack: the agent answered nothing", "skip pod: there is no address to query",
				"skip kubelet: not visible from here", "skip pods: no pods visible",
			},
		},
		{
			name:   "the table of connections is nearly full",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.ConntrackCount, f.ConntrackMax = 95, 100 },
			want:   []string{"warn conntrack table: 95 of 100 entries: new tracked connections may be dropped"},
		},
		{
			name:   "the table of connections has no end",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.ConntrackCount, f.ConntrackMax = 95, 0 },
			want:   []string{"ok conntrack table: 95 entries, no limit"},
		},
		{
			name:   "the agent hangs and has its lease still",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Node[0], f.Node[4] = lose(f.Node[0]), lose(f.Node[4]) },
			want: []string{
				"fail socket 169.254.20.10 udp: no answer in 1s (udp)", "ok socket 169.254.20.10 tcp: agent 0badcafe (tcp 210µs)",
				"fail 169.254.20.10 udp: no server answers: no answer in 1s (udp)", "ok 169.254.20.10 tcp: agent 0badcafe (tcp 210µs)",
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
				delete(f.Backends[0].State.Leases, local4)
				f.Pod[1], f.Pod[2] = lose(f.Pod[1]), lose(f.Pod[2])
			},
			want: []string{
				"fail lease 169.254.20.10: not held: the agent does not answer its self-query, so other servers get the queries",
				"ok 169.254.20.10 udp: agent 0badcafe (udp 210µs)", "fail 169.254.20.10 tcp: no server answers: no answer in 1s (tcp)",
				"ok conntrack: 0 entries for 3 queries to the agent", "fail name at 169.254.20.10: kubernetes.default.svc.cluster.local: no answer in 1s",
			},
		},
		{
			name: "the data plane does not have this pod's address", mode: rules.Transparent,
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Backends[0].State.Leases = nil
				other := doctor.Outcome{Answer: "REFUSED", Took: time.Millisecond}
				f.Node, f.Pod = become(f.Node, other), become(f.Pod, silent())
			},
			want: []string{
				"fail lease 10.96.0.10: not held: the agent does not answer its self-query, so other servers get the queries",
				"warn 10.96.0.10: the central DNS answers, REFUSED, as the agent has no lease (udp 1ms, tcp 1ms)",
				"skip conntrack: the agent answered nothing",
				"fail name at 10.96.0.10: kubernetes.default.svc.cluster.local: REFUSED",
				"warn 10.96.0.10: no answer, though the node gets one: no answer in 1s (udp, tcp)",
				"skip conntrack: the agent answered nothing",
				"fail name at 10.96.0.10: kubernetes.default.svc.cluster.local: no answer in 1s",
			},
		},
		{
			name: "a fallback that answers names only",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				delete(f.Backends[0].State.Leases, local4)
				f.Pod[0], f.Pod[1] = lose(f.Pod[0]), lose(f.Pod[1])
			},
			want: []string{
				"fail lease 169.254.20.10: not held: the agent does not answer its self-query, so other servers get the queries",
				"warn 169.254.20.10: the central DNS answers names, as the agent has no lease (udp, tcp)",
				"ok conntrack: 0 entries for 2 queries to the agent",
			},
		},
		{
			name:   "packets are tracked",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Pod[0].Tracked = true },
			want:   []string{"fail conntrack: 1 entry for 4 queries to the agent"},
		},
		{
			name: "packets are tracked, as they must be", mode: rules.Transparent,
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Backends[0].Backend = "iptables-nft"
				f.Pod[0].Tracked, f.Pod[1].Tracked = true, true
			},
			want: []string{
				"ok lease 10.96.0.10: held, 2.6s left (iptables-nft, agent 0badcafe)",
				"warn conntrack: 2 entries for 2 queries to the agent: iptables cannot rewrite without tracking",
			},
		},
		{
			name:   "whether packets are tracked is not known",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Pod[0].TrackedErr = "operation not permitted" },
			want:   []string{"skip conntrack: unknown: operation not permitted"},
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
			name:   "the dropping rule is unknown",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.DropErr = errSeen },
			want:   []string{"skip dropped by: unknown: operation not permitted"},
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
			name: "all fallbacks serve others over TCP",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Fallback[1].Answer, f.Fallback[3].Answer = "REFUSED", "SERVFAIL"
			},
			want: []string{"fail 10.244.3.7:53 tcp: REFUSED", "fail [fd00:244::7]:53 tcp: SERVFAIL"},
		},
		{
			name:   "no fallback of one family",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Fallback = f.Fallback[:2] },
			want:   []string{"warn fallback: none of fd00::a's family: if the agent does not answer there, no server does"},
		},
		{
			name:   "no fallback",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Fallback, f.Backends[0].State.Fallback = nil, nil },
			want:   []string{"warn fallback: none: if the agent does not answer, no server does"},
		},
		{
			name:   "the kubelet cannot be read",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Kubelet = doctor.Kubelet{Err: errSeen} },
			want:   []string{"skip kubelet: unknown: operation not permitted"},
		},
		{
			name:   "the kubelet hands out nothing",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Kubelet = doctor.Kubelet{From: "its flags"} },
			want:   []string{"warn kubelet: sets no nameserver for pods (its flags)"},
		},
		{
			name: "the kubelet hands out the agent, which listens to the Service", mode: rules.Transparent,
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Kubelet = doctor.Kubelet{DNS: []string{"169.254.20.10"}, From: "its flags"}
			},
			want: []string{"warn kubelet: sets nameserver 169.254.20.10, not 10.96.0.10 (its flags)"},
		},
		{
			name:   "some pods ask others",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.Pods["10.96.0.10"] = 1 },
			want:   []string{"ok pods: 14 pods with nameserver 169.254.20.10, 14 pods with nameserver fd00::a, 1 pod with nameserver 10.96.0.10"},
		},
		{
			name:   "pods cannot be seen",
			change: func(_ *doctor.Config, f *doctor.Facts) { f.PodsErr = errSeen },
			want:   []string{"skip pods: operation not permitted"},
		},
	} {
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
			t.Errorf("%s: new lines (-want +got):\n%s", tt.name, diff)
		}
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

// must ends the test at an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
