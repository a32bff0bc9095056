// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/convert"
	"github.com/nodecache/node-cache/pkg/doctor"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/names/push"
	"github.com/nodecache/node-cache/pkg/sockdiag"
	"github.com/nodecache/node-cache/pkg/subscribe"
)

// TestChecks compares with a file the lines, without their fix, that each single change adds to the report of a healthy node.
func TestChecks(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for _, tt := range []struct {
		name   string
		mode   rules.Mode
		change func(*doctor.Config, *doctor.Facts)
	}{
		{name: "the agent lacks a capability", change: func(_ *doctor.Config, f *doctor.Facts) { f.AgentMissing = []string{"NET_ADMIN"} }},
		{name: "the data plane is not known", change: func(_ *doctor.Config, f *doctor.Facts) { f.DataPlaneErr = errSeen }},
		{name: "the data plane is not seen", change: func(_ *doctor.Config, f *doctor.Facts) {
			f.DataPlane = dataplane.Found{Backend: "nftables", Evidence: []string{"cannot read nftables: operation not permitted"}}
		}},
		{name: "a data plane before netfilter leaves link-local mode alone", change: func(_ *doctor.Config, f *doctor.Facts) {
			f.DataPlane = dataplane.Found{Proxy: dataplane.Calico, Early: true, Note: "Link-local can.", Backend: "nftables", Reason: "it needs no program"}
		}},
		{name: "Cilium from a pod", change: onCilium(func(*doctor.Facts) {})},
		{name: "Cilium 1.15 with BPF host routing", change: onCilium(func(f *doctor.Facts) {
			f.Cilium = seenCilium("1.15.19", "kube-proxy-replacement", "true", "enable-bpf-masquerade", "true", "enable-host-firewall", "true")
			f.Cilium.Local = map[netip.Addr]bool{local4: false}
		})},
		{name: "Cilium 1.15 with BPF host routing and the option, whose map cannot be read", change: onCilium(func(f *doctor.Facts) {
			f.Cilium = seenCilium("1.15.19", "kube-proxy-replacement", "strict", "enable-bpf-masquerade", "true", "local-max-addr-scope", "254")
			f.Cilium.LocalErr = errSeen
		})},
		{name: "Cilium 1.15 with BPF host routing, whose map cannot be read", change: onCilium(func(f *doctor.Facts) {
			f.Cilium = seenCilium("1.15.19", "kube-proxy-replacement", "true", "enable-bpf-masquerade", "true")
			f.Cilium.LocalErr = errSeen
		})},
		{name: "Cilium 1.17 with legacy host routing, whose map cannot be read", change: onCilium(func(f *doctor.Facts) {
			f.Cilium, f.DataPlane.Tunnel = seenCilium("1.17.3"), "cilium_vxlan"
			f.Cilium.LocalErr = errSeen
		})},
		{name: "Cilium 1.15 with legacy host routing", change: onCilium(func(f *doctor.Facts) {
			f.Cilium = seenCilium("1.15.19", "enable-ipv6", "true")
			f.Cilium.Local = map[netip.Addr]bool{local4: false, local6: true}
		})},
		{name: "Cilium 1.18, whose map cannot be read", change: onCilium(func(f *doctor.Facts) {
			f.Cilium = seenCilium("1.18.0")
			f.Cilium.LocalErr = errSeen
		})},
		{name: "Cilium 1.20 without conntrack for pods", change: onCilium(func(f *doctor.Facts) {
			f.Cilium, f.DataPlane.Untracked = seenCilium("1.20.2"), []string{"iptables-nft for IPv4"}
			f.Cilium.LocalErr = errSeen
		})},
		{name: "a map of Cilium without its process", change: onCilium(func(f *doctor.Facts) {
			f.Cilium = doctor.Cilium{Local: map[netip.Addr]bool{local4: false}}
		})},
		{name: "a process of Cilium that cannot be read", change: onCilium(func(f *doctor.Facts) { f.Cilium.Err = errSeen })},
		{name: "Cilium, whose rules cannot be read", change: onCilium(func(f *doctor.Facts) {
			f.DataPlane.Evidence = append(f.DataPlane.Evidence, "cannot read nftables: operation not permitted")
		})},
		{name: "Cilium, where programs on sockets cannot be read", change: onCilium(func(f *doctor.Facts) {
			f.DataPlane.Evidence = append(f.DataPlane.Evidence, "cannot read the programs on sockets: operation not permitted")
		})},
		{name: "Cilium with the other variant of iptables", change: onCilium(func(f *doctor.Facts) {
			f.DataPlane.Untracked, f.Backends[0].Backend = []string{"iptables-legacy for IPv4"}, "iptables-nft"
		})},
		{name: "Cilium with a bridge", change: onCilium(func(f *doctor.Facts) { f.Addresses[0].Kind = "bridge" })},
		{name: "policy engines", change: func(_ *doctor.Config, f *doctor.Facts) {
			f.DataPlane.Policies = []string{"kube-network-policies", "kube-router"}
		}},
		{name: "no data plane and a backend of one's own", change: func(c *doctor.Config, f *doctor.Facts) {
			c.Backend, f.DataPlane = "nftables", dataplane.Found{}
		}},
		{name: "an address on a second link", change: func(_ *doctor.Config, f *doctor.Facts) {
			f.Addresses = append(f.Addresses, doctor.Address{Addr: local4, Link: "eth0"})
		}},
		{name: "an address of another program's", change: func(_ *doctor.Config, f *doctor.Facts) { f.Addresses[1].Alias = "" }},
		{name: "an address on a link that the agent does not manage", change: func(c *doctor.Config, f *doctor.Facts) {
			c.ManageLink, f.Addresses = false, []doctor.Address{{Addr: local4, Link: "eth0", Kind: "device"}}
		}},
		{name: "an address on lo", change: func(_ *doctor.Config, f *doctor.Facts) {
			f.Addresses[1] = doctor.Address{Addr: local6, Link: "lo", Kind: "device"}
		}},
		{name: "addresses are not known", change: func(_ *doctor.Config, f *doctor.Facts) { f.AddressErr = errSeen }},
		{name: "no process listens over TCP", change: func(_ *doctor.Config, f *doctor.Facts) {
			f.Sockets = slices.DeleteFunc(f.Sockets, func(s sockdiag.Socket) bool { return s.TCP && s.Local.Addr() == local4 })
		}},
		{name: "two listen", change: func(_ *doctor.Config, f *doctor.Facts) {
			f.Sockets = append(f.Sockets, sockdiag.Socket{Local: netip.MustParseAddrPort("0.0.0.0:53"), UID: 65534})
		}},
		{name: "sockets are not known", change: func(_ *doctor.Config, f *doctor.Facts) { f.SocketsErr = errSeen }},
		{name: "the agent is not ready", change: func(_ *doctor.Config, f *doctor.Facts) { f.Status = "not ready: the cluster zone is not synced" }},
		{name: "no status page", change: func(c *doctor.Config, _ *doctor.Facts) { c.Admin = netip.AddrPort{} }},
		{name: "rules of two backends", change: func(_ *doctor.Config, f *doctor.Facts) {
			f.Backends = append(f.Backends, rules.State{Backend: "iptables-nft"})
		}},
		{name: "one family is not leased", change: func(_ *doctor.Config, f *doctor.Facts) { delete(f.Backends[0].Leases, local6) }},
		{name: "the Service is not known", mode: rules.Transparent, change: func(c *doctor.Config, f *doctor.Facts) {
			c.Rules.Services, f.Backends[0].Leases, f.Pod, f.Pods = nil, nil, nil, nil
			f.Node, f.PodErr, f.Kubelet = f.Node[:2], errors.New("there is no address to query"), doctor.Kubelet{}
		}},
		{name: "the table of connections is nearly full", change: func(_ *doctor.Config, f *doctor.Facts) {
			f.ConntrackCount, f.ConntrackMax = 95, 100
		}},
		{name: "the table of connections has no end", change: func(_ *doctor.Config, f *doctor.Facts) { f.ConntrackCount, f.ConntrackMax = 95, 0 }},
		{name: "hits in the kernel, which this node supports", change: func(c *doctor.Config, f *doctor.Facts) {
			c.KernelHits, f.KernelHook = "auto", "clsact"
		}},
		{name: "hits in the kernel if possible", change: func(c *doctor.Config, f *doctor.Facts) {
			c.KernelHits, f.KernelErr = "auto", errSeen
		}},
		{name: "hits in the kernel in any case", change: func(c *doctor.Config, f *doctor.Facts) { c.KernelHits, f.KernelErr = "on", errSeen }},
		{name: "the agent hangs and has its lease still", change: func(_ *doctor.Config, f *doctor.Facts) {
			f.Node[0], f.Node[4] = lose(f.Node[0]), lose(f.Node[4])
		}},
		{name: "another program has the address", change: func(_ *doctor.Config, f *doctor.Facts) {
			f.Node[0].Token, f.Node[0].Answer = "", "REFUSED"
		}},
		{name: "another agent answers", change: func(_ *doctor.Config, f *doctor.Facts) { f.Pod[0].Token = "other" }},
		{name: "packets are lost between lease and fallback", change: func(_ *doctor.Config, f *doctor.Facts) {
			delete(f.Backends[0].Leases, local4)
			f.Pod[1], f.Pod[2] = lose(f.Pod[1]), lose(f.Pod[2])
		}},
		{name: "a data plane that leaves the Service alone", mode: rules.Transparent, change: func(c *doctor.Config, f *doctor.Facts) {
			c.Rules.Excluded = true
			f.DataPlane = dataplane.Found{Proxy: dataplane.Calico, Early: true, Note: "a note", Backend: "nftables", Reason: "it needs no program"}
		}},
		{name: "Cilium, which cannot leave the Service alone", mode: rules.Transparent, change: func(c *doctor.Config, f *doctor.Facts) {
			c.Rules.Excluded = true
			f.DataPlane = dataplane.Found{Proxy: dataplane.Cilium, Early: true, Note: "a note", Backend: "nftables", Reason: "it needs no program"}
		}},
		{name: "the data plane does not have this pod's address", mode: rules.Transparent, change: func(_ *doctor.Config, f *doctor.Facts) {
			f.Backends[0].Leases = nil
			other := doctor.Outcome{Answer: "REFUSED", Took: time.Millisecond}
			f.Node, f.Pod = become(f.Node, other), become(f.Pod, silent())
		}},
		{name: "a fallback that answers names only", change: func(_ *doctor.Config, f *doctor.Facts) {
			delete(f.Backends[0].Leases, local4)
			f.Pod[0], f.Pod[1] = lose(f.Pod[0]), lose(f.Pod[1])
		}},
		{name: "packets are tracked", change: func(_ *doctor.Config, f *doctor.Facts) { f.Pod[0].Tracked = true }},
		{name: "packets are tracked, as they must be", mode: rules.Transparent, change: func(_ *doctor.Config, f *doctor.Facts) {
			f.Backends[0].Backend = "iptables-nft"
			f.Pod[0].Tracked, f.Pod[1].Tracked = true, true
		}},
		{name: "whether packets are tracked is not known", change: func(_ *doctor.Config, f *doctor.Facts) {
			f.Pod[0].TrackedErr = "operation not permitted"
		}},
		{name: "the name of the cluster", change: func(_ *doctor.Config, f *doctor.Facts) {
			for i, o := range f.Pod {
				if o.Name != "" {
					f.Pod[i] = doctor.Outcome{Probe: o.Probe, Answer: map[bool]string{true: "NXDOMAIN", false: "SERVFAIL"}[o.To.Addr().Is4()]}
				}
			}
		}},
		{name: "the dropping rule is unknown", change: func(_ *doctor.Config, f *doctor.Facts) { f.DropErr = errSeen }},
		{name: "one fallback of two is silent", change: func(_ *doctor.Config, f *doctor.Facts) {
			second := f.Fallback[0]
			second.To, second.Answer, second.Error = netip.MustParseAddrPort("10.244.4.7:53"), "", "no answer in 1s"
			f.Fallback = append(f.Fallback, second)
		}},
		{name: "all fallbacks serve others over TCP", change: func(_ *doctor.Config, f *doctor.Facts) {
			f.Fallback[1].Answer, f.Fallback[3].Answer = "REFUSED", "SERVFAIL"
		}},
		{name: "the rules lead nowhere", change: func(_ *doctor.Config, f *doctor.Facts) {
			f.WithoutLease[local4] = intercept.FallbackResult{
				State: intercept.FallbackBroken, Why: "the endpoints answer, but not a query past the lease over UDP: no reply within 2s",
			}
		}},
		{name: "the fallback has no cluster names", change: func(_ *doctor.Config, f *doctor.Facts) {
			f.WithoutLease[local4] = intercept.FallbackResult{
				State: intercept.FallbackUnverified, Why: "it replies that there is no name kubernetes.default.svc.cluster.local.",
			}
		}},
		{name: "no fallback of one family", change: func(_ *doctor.Config, f *doctor.Facts) { f.Fallback = f.Fallback[:2] }},
		{name: "no fallback", change: func(_ *doctor.Config, f *doctor.Facts) { f.Fallback, f.Backends[0].Fallback = nil, nil }},
		{name: "the agent serves the zones of the cluster's DNS", change: func(c *doctor.Config, _ *doctor.Facts) { c.Gaps = []convert.Gap{} }},
		{name: "the cluster's DNS serves more zones", change: func(c *doctor.Config, _ *doctor.Facts) {
			c.Gaps = []convert.Gap{{What: "zones", Names: []string{"corp.example.", "clusterset.local."}, Fix: "fix"}, {What: "files", Names: []string{"/etc/hosts"}, Fix: "fix"}}
		}},
		{name: "the cluster's DNS serves many names more", change: func(c *doctor.Config, _ *doctor.Facts) {
			c.Gaps = []convert.Gap{{What: "zones", Names: slices.Repeat([]string{"a."}, 1000), Fix: "fix"}}
		}},
		{name: "a push session", change: onPush(subscribe.Stats{Server: "push://10.244.0.2:53", Since: time.Unix(1780000000, 0), Names: 12})},
		{name: "no push session, because it is idle", change: onPush(subscribe.Stats{Idle: true, Why: "push://10.244.0.2:53: no name is asked for"})},
		{name: "no push session, without a server", change: onPush(subscribe.Stats{Why: subscribe.NoServer})},
		{name: "no push session, because the server refuses it", change: onPush(subscribe.Stats{Why: "push://10.244.0.2:53: " + subscribe.NoPush})},
		{name: "no push session, because the server is away", change: onPush(subscribe.Stats{Why: "dial tcp 10.244.0.2:53: i/o timeout"})},
		{name: "push is not known", change: func(c *doctor.Config, _ *doctor.Facts) { c.Push.Err = errSeen }},
		{name: "subscribers", change: onSubscribers(push.Stats{Sessions: 1, Subscriptions: 90})},
		{name: "subscribers, one with too many names", change: onSubscribers(push.Stats{Sessions: 1, Refused: push.Refused{Name: 1, Count: 2}})},
		{name: "subscribers, too many for the memory", change: onSubscribers(push.Stats{Sessions: 1, Refused: push.Refused{Memory: 3, Count: 2}})},
		{name: "subscribers, one ended for another", change: onSubscribers(push.Stats{Sessions: 1, Ended: push.Ended{Memory: 4}})},
		{name: "the kubelet cannot be read", change: func(_ *doctor.Config, f *doctor.Facts) { f.Kubelet = doctor.Kubelet{Err: errSeen} }},
		{name: "the kubelet hands out nothing", change: func(_ *doctor.Config, f *doctor.Facts) { f.Kubelet = doctor.Kubelet{From: "its flags"} }},
		{name: "the kubelet hands out the agent, which listens to the Service", mode: rules.Transparent, change: func(_ *doctor.Config, f *doctor.Facts) {
			f.Kubelet = doctor.Kubelet{DNS: []string{"169.254.20.10"}, From: "its flags"}
		}},
		{name: "some pods ask others", change: func(_ *doctor.Config, f *doctor.Facts) { f.Pods[netip.MustParseAddr("10.96.0.10")] = 1 }},
		{name: "pods cannot be seen", change: func(_ *doctor.Config, f *doctor.Facts) { f.PodsErr = errSeen }},
	} {
		c := configured(tt.mode)
		f := well(&c)
		before := lines(doctor.Examine(c, f))
		tt.change(&c, &f)
		all.WriteString("# " + tt.name + "\n")
		for _, l := range lines(doctor.Examine(c, f)) {
			if !slices.Contains(before, l) {
				all.WriteString(l + "\n")
			}
		}
	}
	assert.Golden(t, filepath.Join("testdata", "checks.txt"), all.String())
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

// onCilium returns a change of the facts to those of a node with Cilium, of which a pod sees the links and the rules only.
func onCilium(change func(*doctor.Facts)) func(*doctor.Config, *doctor.Facts) {
	return func(_ *doctor.Config, f *doctor.Facts) {
		f.DataPlane = dataplane.Found{
			Proxy: dataplane.Cilium, Early: true, Note: "Link-local can.", Evidence: []string{"link cilium_host"}, Backend: "nftables", Reason: "it needs no program",
		}
		f.Cilium.LocalErr = errors.New("opening Cilium's map of endpoints: no such file or directory")
		change(f)
	}
}

// TestPushFix checks that each cause of a missing session has its own fix.
func TestPushFix(t *testing.T) {
	t.Parallel()
	for why, want := range map[string]string{
		subscribe.NoServer: "cluster.central.service", "push://10.244.0.2:53: " + subscribe.NoPush: "push.clients", "connection refused": "over TCP",
	} {
		c := configured(rules.LinkLocal)
		f := well(&c)
		onPush(subscribe.Stats{Why: why})(&c, &f)
		r := doctor.Examine(c, f)
		i := slices.IndexFunc(r.Lines, func(l doctor.Line) bool { return l.Check == "push" })
		if i < 0 || !strings.Contains(r.Lines[i].Fix, want) {
			t.Errorf("%s: %+v, want a fix with %q", why, r.Lines, want)
		}
	}
}

// onPush returns a change to an agent with this push session.
func onPush(s subscribe.Stats) func(*doctor.Config, *doctor.Facts) {
	return func(c *doctor.Config, _ *doctor.Facts) { c.Push.Session = &s }
}

// onSubscribers returns a change to a resolver with these subscribers.
func onSubscribers(s push.Stats) func(*doctor.Config, *doctor.Facts) {
	return func(c *doctor.Config, _ *doctor.Facts) { c.Push.Served = &s }
}

// seenCilium returns the facts of a process with these options.
func seenCilium(version string, options ...string) doctor.Cilium {
	c := doctor.Cilium{Seen: true, Version: version, Options: map[string]string{}}
	for i := 0; i < len(options); i += 2 {
		c.Options[options[i]] = options[i+1]
	}
	return c
}
