// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"bytes"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/doctor"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/dataplane"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
	"github.com/nodecache/node-cache/pkg/sockdiag"
)

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
		Intercept: true, Backend: "auto", ManageLink: true, Link: "nodelocaldns", Name: "kubernetes.default.svc.cluster.local.", Domain: "cluster.local.",
		Admin: netip.MustParseAddrPort("127.0.0.1:9253"), KernelHits: "off",
		Rules: rules.Rules{Mode: m, Addresses: []netip.Addr{local4, local6}, Port: 53},
	}
	if m == rules.Transparent {
		c.Rules.Addresses, c.Rules.Services = []netip.Addr{local4}, []netip.Addr{service4}
	}
	return c
}

// well are the facts of a node whose state matches c.
func well(c *doctor.Config) doctor.Facts {
	f := doctor.Facts{
		AgentPID: 4711, KernelHook: "tcx",
		Status: "ready", ConntrackCount: 812, ConntrackMax: 262144,
		DataPlane: dataplane.Found{
			Proxy: dataplane.NFTables, Evidence: []string{"kube-proxy reports mode nftables"}, Backend: "nftables", Reason: "kube-proxy uses it",
		},
		Kubelet: doctor.Kubelet{From: "clusterDNS in /var/lib/kubelet/config.yaml"}, Pods: map[netip.Addr]int{},
		WithoutLease: map[netip.Addr]intercept.FallbackResult{},
	}
	held := rules.State{Backend: "nftables", Present: true, Owner: token, Leases: map[netip.Addr]time.Duration{}}
	for _, a := range c.Rules.Addresses {
		f.Addresses = append(f.Addresses, doctor.Address{Addr: a, Link: "nodelocaldns", Kind: "dummy", Alias: "node-cache " + token})
		at := netip.AddrPortFrom(a, 53)
		f.Sockets = append(f.Sockets,
			sockdiag.Socket{Local: at, PID: 4711, Program: "node-cache"}, sockdiag.Socket{TCP: true, Local: at, PID: 4711, Program: "node-cache"})
		f.Node = append(f.Node, byAgent(doctor.Probe{To: at, Own: true}), byAgent(doctor.Probe{To: at, TCP: true, Own: true}))
	}
	for _, l := range c.Rules.Leases() {
		held.Leases[l.Key] = 2600 * time.Millisecond
		f.WithoutLease[l.Key] = intercept.FallbackResult{State: intercept.FallbackWorks}
		f.Kubelet.DNS = append(f.Kubelet.DNS, l.Key.String())
		f.Pods[l.Key] = 14
		to := netip.AddrPortFrom(l.Key, 53)
		asked := []doctor.Outcome{
			byAgent(doctor.Probe{To: to}), byAgent(doctor.Probe{To: to, TCP: true}),
			{Probe: doctor.Probe{To: to, Name: c.Name}, Answer: "NOERROR", Records: 1, Took: 190 * time.Microsecond},
		}
		f.Node, f.Pod = append(f.Node, asked...), append(f.Pod, asked...)
	}
	if c.Rules.Mode == rules.LinkLocal {
		held.Fallback = []netip.AddrPort{netip.MustParseAddrPort("10.244.3.7:53"), netip.MustParseAddrPort("[fd00:244::7]:53")}
		for _, to := range held.Fallback {
			for _, tcp := range []bool{false, true} {
				f.Fallback = append(f.Fallback, doctor.Outcome{
					Probe: doctor.Probe{To: to, TCP: tcp, Name: c.Name}, Answer: "NOERROR", Records: 1, Took: 1240 * time.Microsecond,
				})
			}
		}
	}
	f.Backends = []rules.State{held}
	return f
}

func byAgent(p doctor.Probe) doctor.Outcome {
	return doctor.Outcome{Probe: p, Answer: "NOERROR", Records: 1, Token: token, Took: 210 * time.Microsecond}
}

// become sets all outcomes to o, except those to the agent's own sockets.
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

// unserved makes the facts those of a node whose agent has ended.
func unserved(f *doctor.Facts) {
	f.AgentPID, f.Sockets, f.StatusErr = 0, nil, errors.New("connection refused")
	for i := range f.Node {
		if f.Node[i].Own {
			f.Node[i] = doctor.Outcome{Probe: f.Node[i].Probe, Error: "connection refused", Refused: true}
		}
	}
	f.Backends[0].Leases = nil
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
				f.Backends, f.Addresses, f.Fallback, f.WithoutLease = nil, nil, nil, nil
				f.Node, f.Pod = become(f.Node, silent()), become(f.Pod, silent())
				f.Kubelet.DNS, f.Pods = []string{"10.96.0.10"}, map[netip.Addr]int{netip.MustParseAddr("10.96.0.10"): 12, netip.MustParseAddr("8.8.8.8"): 1}
			},
		},
		{
			name: "policy", failed: true,
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Pod = become(f.Pod, silent())
				f.Drops = []doctor.Drop{
					{Where: "inet filter input", Rule: "the rule with handle 7, see `nft -a list chain inet filter input`"},
					{Where: "ip filter INPUT", Policy: true},
					{Where: "iptables-legacy", Rule: "iptables -t filter -A INPUT -i eth0 -j DROP"},
				}
			},
		},
		{
			name: "cilium", mode: rules.Transparent, failed: true,
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.DataPlane = dataplane.Found{
					Proxy: dataplane.Cilium, Early: true, Evidence: []string{"link cilium_host"}, Backend: "nftables", Reason: "it needs no program",
					Note: "Transparent interception cannot work here.",
				}
				other := doctor.Outcome{Answer: "REFUSED", Took: time.Millisecond}
				f.Node, f.Pod = become(f.Node, other), become(f.Pod, other)
			},
		},
		{
			name: "no-capabilities",
			change: func(_ *doctor.Config, f *doctor.Facts) {
				f.Missing, f.AgentPID = []string{"NET_ADMIN"}, 0
				f.Backends, f.BackendErrs, f.Fallback, f.WithoutLease = nil, []error{errSeen}, nil, nil
				for i := range f.Node {
					f.Node[i].TrackedErr = "operation not permitted"
					if f.Node[i].Own {
						f.Node[i] = doctor.Outcome{Probe: f.Node[i].Probe, Error: "operation not permitted"}
					}
				}
				f.Pod, f.PodErr = nil, errors.New("needs the capability NET_ADMIN")
				f.Kubelet, f.Pods = doctor.Kubelet{}, nil
			},
		},
		{
			name: "no-interception",
			change: func(c *doctor.Config, f *doctor.Facts) {
				*c = doctor.Config{KernelHits: "off", Rules: rules.Rules{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: 1053}, Admin: c.Admin}
				at := netip.MustParseAddrPort("127.0.0.1:1053")
				*f = doctor.Facts{
					Status: "ready", KernelErr: &hint.Error{Err: errors.New("missing capability: BPF"), Hint: "add it"}, Sockets: []sockdiag.Socket{
						{Local: netip.MustParseAddrPort("0.0.0.0:1053"), UID: 1000}, {TCP: true, Local: netip.MustParseAddrPort("[::]:1053"), UID: 1000},
					},
					Node:   []doctor.Outcome{byAgent(doctor.Probe{To: at, Own: true}), byAgent(doctor.Probe{To: at}), byAgent(doctor.Probe{To: at, TCP: true})},
					PodErr: errors.New("127.0.0.1 is for the node alone: no pod can ask there"), ConntrackErr: errors.New("conntrack is not loaded"),
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
			assert.Equal(t, "Failed()", tt.failed, r.Failed())
			var text, object bytes.Buffer
			assert.NoError(t, errors.Join(r.Text(&text, false), r.JSON(&object)))
			assert.Golden(t, filepath.Join("testdata", tt.name+".txt"), text.String())
			assert.Golden(t, filepath.Join("testdata", tt.name+".json"), object.String())
			for _, l := range r.Lines {
				if (l.Verdict == doctor.Warn || l.Verdict == doctor.Fail) && l.Fix == "" {
					t.Errorf("%s %s: %s %q has no fix", l.Part, l.Check, l.Verdict, l.What)
				}
			}
		})
	}
}

func TestTextColours(t *testing.T) {
	t.Parallel()
	r := doctor.Report{Title: "t", Lines: []doctor.Line{{Part: "p", Check: "a", Verdict: doctor.Fail, What: "w", Fix: "f"}, {Part: "p", Check: "bcd", What: "x"}}}
	var plain, coloured strings.Builder
	assert.NoError(t, errors.Join(r.Text(&plain, false), r.Text(&coloured, true)))
	want := "t\n\np\n  fail  a    w\n             fix: f\n  ok    bcd  x\n\n1 ok, 0 skipped, 0 warnings, 1 failed\n"
	assert.Same(t, "without colours", want, plain.String())
	want = "t\n\np\n  \x1b[31mfail\x1b[0m  a    w\n             fix: f\n  \x1b[32mok  \x1b[0m  bcd  x\n\n1 ok, 0 skipped, 0 warnings, 1 failed\n"
	assert.Same(t, "with colours", want, coloured.String())
}
