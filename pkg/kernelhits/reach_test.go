// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestBlocked has programs before the agent's, which end the chain where the agent's may not be the first. The agent answers the pod,
// and names its interface with the reason. The other pod has hits.
func TestBlocked(t *testing.T) {
	for _, tt := range []struct {
		name, hook string
		filter     uint32 // side of another's filter; 0: it has a program of tcx at egress
		want       []string
	}{
		{"filter of the first priority", "clsact", netlink.HANDLE_MIN_INGRESS, []string{"pod0: " + blockedIngress}},
		{"filter at egress", "clsact", netlink.HANDLE_MIN_EGRESS, []string{"pod0: " + blockedEgress}},
		{"filter at egress, program of tcx at ingress", "tcx", netlink.HANDLE_MIN_EGRESS, []string{"pod0: " + blockedEgress}},
		{"program at egress", "tcx", 0, []string{"pod0: " + blockedEgress}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNetwork(t, nodetest.Options{})
			n.blockedIn = 100 * time.Millisecond
			if tt.filter != 0 {
				n.addFilter(t, tt.filter, actOK)
			} else {
				n.attachOther(t, "pod0", ebpf.AttachTCXEgress, actOK, link.Tail())
			}
			n.startAgent(t, tt.hook)
			proctest.Eventually(t, limit, "the interface is named", func() bool {
				n.renew()
				for _, addr := range agentAddrs() {
					who, err := nodetest.Ask(n.Pods[0], addr, "udp")
					assert.NoError(t, err)
					assert.Equal(t, "who answers", byAgent, who)
				}
				able, failed := n.Interfaces()
				return able == 2 && slices.Equal(failed, tt.want)
			})
			n.await(t, n.Pods[1])
		})
	}
}

// addFilter adds a filter to the first pod's interface, as Cilium does on kernels without tcx.
func (n *node) addFilter(t *testing.T, parent uint32, action int32) {
	t.Helper()
	assert.NoError(t, n.Node.Do(func() error {
		dev, err := netlink.LinkByName("pod0")
		if err != nil {
			return err
		}
		index := dev.Attrs().Index
		if err := netlink.QdiscAdd(clsactOf(index)); err != nil {
			return err
		}
		return netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: parent, Handle: 1, Priority: 1, Protocol: 3},
			Fd:          newProgram(t, action).FD(), Name: "cil_from_container", DirectAction: true,
		})
	}))
}

// TestReach reads what the programs have seen of a pod, as times in seconds, and whether others run before the one at egress.
func TestReach(t *testing.T) {
	k := open(t, nil)
	times := func(answered, seen, asked uint64) hitsClient {
		return hitsClient{Answered: answered * 1e9, Seen: seen * 1e9, Asked: asked * 1e9}
	}
	for _, tt := range []struct {
		name   string
		others bool
		seen   []hitsClient // at one read after the other
		want   string
	}{
		{"answered", true, []hitsClient{times(100, 99, 99), times(200, 199, 199)}, ""},
		{"answered, and silent for long", true, []hitsClient{times(100, 99, 99), times(100, 99, 99), times(200, 200, 200)}, ""},
		{"a query without its reply yet", true, []hitsClient{times(100, 100, 100), times(100, 200, 200)}, ""},
		{"hits only", true, []hitsClient{times(100, 100, 100), times(101, 200, 200)}, ""},
		{"queries of kinds that are left to the agent", true, []hitsClient{times(100, 100, 0), times(200, 200, 0)}, ""},
		{"queries to others", true, []hitsClient{times(0, 100, 0), times(0, 200, 0)}, ""},
		{"permit ended", true, []hitsClient{times(100, 99, 99), times(0, 99, 99)}, ""},
		{"replies without queries", false, []hitsClient{times(100, 0, 0), times(111, 0, 0)}, blockedIngress},
		{"replies without queries, for a short time", false, []hitsClient{times(100, 0, 0), times(110, 0, 0)}, ""},
		{"queries without replies", true, []hitsClient{times(0, 100, 100), times(0, 111, 111)}, blockedEgress},
		{"queries without replies, for a short time", true, []hitsClient{times(0, 100, 100), times(0, 110, 110)}, ""},
		{"denied", false, []hitsClient{times(0, 100, 100), times(0, 200, 200)}, ""},
	} {
		for _, family := range families() {
			a := &attachment{name: "pod0", programs: []attachedProgram{follower(tt.others)}}
			for _, c := range tt.seen {
				assert.NoError(t, k.objects.Clients.Put(hitsClientKey{Ifindex: 7, Family: family}, c))
				k.links.checkReach(7, a)
			}
			assert.Equal(t, tt.name, tt.want, a.blocked)
			assert.NoError(t, k.objects.Clients.Delete(hitsClientKey{Ifindex: 7, Family: family}))
		}
	}
}

// A follower is a program that runs after others, or does not.
type follower bool

func (f follower) follows() bool { return bool(f) }
func (follower) detach() error   { return nil }
func (follower) release() error  { return nil }
func (follower) problem() string { return "" }

// TestNetkit names interfaces of pods that get no program because of their type.
func TestNetkit(t *testing.T) {
	k := open(t, nil)
	netkit := func(netns int) netlink.Link {
		return &netlink.Netkit{LinkAttrs: netlink.LinkAttrs{Index: 7, Name: "lxc7", MTU: 1500, NetNsID: netns}}
	}
	expect := func(when string, want []string) {
		t.Helper()
		able, failed := k.Interfaces()
		assert.Equal(t, "interfaces with programs "+when, 0, able)
		assert.Same(t, "interfaces without "+when, want, failed)
	}
	k.links.apply(t.Context(), netkit(-1), true)
	expect("of the node", nil)
	k.links.apply(t.Context(), netkit(1), true)
	expect("of a pod", []string{"lxc7: the program does not support netkit"})
	k.links.apply(t.Context(), netkit(1), false)
	expect("after its end", nil)
}
