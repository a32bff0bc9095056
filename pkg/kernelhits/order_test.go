// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"errors"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// What programs of others return.
const (
	actOK   = 0 // ends the chain, as Cilium's programs do for what they let through
	actShot = 2
)

// newProgram returns a program of a data plane that returns action for IP packets, and lets others on.
func newProgram(t *testing.T, action int32) *ebpf.Program {
	t.Helper()
	const protocol = 4 * 4 // offset in struct __sk_buff
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, -1),
		asm.LoadMem(asm.R2, asm.R1, protocol, asm.Word),
		asm.JEq.Imm(asm.R2, int32(networkOrder(0x0806)), "end"), // ARP
		asm.Mov.Imm(asm.R0, action),
		asm.Return().WithSymbol("end"),
	}})
	assert.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// attachOther attaches a program of another process to an interface.
func (n *node) attachOther(t *testing.T, name string, side ebpf.AttachType, action int32, at link.Anchor) {
	t.Helper()
	var other link.Link
	assert.NoError(t, n.Node.Do(func() error {
		dev, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		other, err = link.AttachTCX(link.TCXOptions{Interface: dev.Attrs().Index, Program: newProgram(t, action), Attach: side, Anchor: at})
		if errors.Is(err, link.ErrNotSupported) {
			t.Skip("this kernel has no tcx")
		}
		return err
	}))
	t.Cleanup(func() { _ = other.Close() })
}

// TestEndOfChain has a program at ingress end the chain, as Cilium's does. The kernel answers pods that are older than the agent, and
// younger ones, also after the program has taken the first place, and after a restart of the agent.
func TestEndOfChain(t *testing.T) {
	n := newNetwork(t, nodetest.Options{})
	older, younger := n.Pods[0], n.Pods[1]
	n.attachOther(t, "pod0", ebpf.AttachTCXIngress, actOK, link.Tail())
	n.startAgent(t, "tcx")
	n.await(t, older)
	n.await(t, younger)
	n.attachOther(t, "pod1", ebpf.AttachTCXIngress, actOK, link.Tail())
	n.await(t, younger)
	n.stop()
	n.startAgent(t, "tcx")
	n.await(t, older)
	n.await(t, younger)
	n.attachOther(t, "pod1", ebpf.AttachTCXIngress, actOK, link.Head())
	n.awaitPrograms(t)
	n.await(t, younger)
}

// TestVerdictAtEgress has a program drop the replies to a pod. It comes when the pod is permitted, and behind the program that permits.
// The kernel does not answer the pod any more.
func TestVerdictAtEgress(t *testing.T) {
	for _, hook := range hooks() {
		t.Run(hook, func(t *testing.T) {
			n := newNode(t, "tcx", nodetest.Options{})
			n.await(t, n.Pods[0])
			key := hitsClientKey{Ifindex: uint32(n.index(t, "pod0")), Family: 4}
			if hook == "tcx" {
				n.attachOther(t, "pod0", ebpf.AttachTCXEgress, actShot, link.Tail())
			} else {
				n.addFilter(t, netlink.HANDLE_MIN_EGRESS, actShot)
			}
			proctest.Eventually(t, limit, "the permit ends", func() bool {
				var c hitsClient
				return n.objects.Clients.Lookup(key, &c) == nil && c.Answered == 0
			})
			for range 2 { // the first would renew the permit for the second
				if who, err := nodetest.Ask(n.Pods[0], agentAddrs()[0], "udp"); err == nil {
					t.Errorf("answered by the %s", who)
				}
			}
			n.await(t, n.Pods[1])
		})
	}
}

// TestFight has a program take the first place at ingress, or the last at egress, each time that the agent's has it. The agent
// repairs this a few times, then once in 30 s, and reports it. In between the interface has no programs: a permit would be worth nothing.
func TestFight(t *testing.T) {
	for _, tt := range []struct {
		name  string
		side  ebpf.AttachType
		place link.Anchor
		want  string
	}{
		{"first at ingress", ebpf.AttachTCXIngress, link.Head(), "pod0: another program takes the first place at ingress again and again"},
		{"last at egress", ebpf.AttachTCXEgress, link.Tail(), "pod0: another program takes the last place at egress again and again"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, "tcx", nodetest.Options{})
			n.awaitInterfaces(t, 3)
			n.stop()
			now := time.Now()
			k := open(t, nil)
			k.cfg.Now = func() time.Time { return now }
			relist := func() {
				t.Helper()
				assert.NoError(t, n.Node.Do(func() error { return k.links.relist(t.Context()) }))
			}
			index := n.index(t, "pod0")
			fight := func() (attached int) {
				t.Helper()
				for relist(); k.links.attached[index] != nil; relist() {
					attached++
					n.attachOther(t, "pod0", tt.side, actOK, tt.place)
				}
				return attached
			}
			assert.Equal(t, "times attached", attachBurst, fight())
			attached, failed := k.Interfaces()
			assert.Equal(t, "interfaces with programs", 2, attached)
			assert.Same(t, "interfaces without", []string{tt.want}, failed)
			now = now.Add(attachInterval)
			assert.Equal(t, "times attached after the interval", 1, fight())
			now = now.Add(attachInterval)
			relist()
			attached, failed = k.Interfaces()
			assert.Equal(t, "interfaces with programs after the fight", 3, attached)
			assert.Same(t, "interfaces without after the fight", nil, failed)
			assert.NoError(t, n.Node.Do(func() error { k.links.detachAll(); return nil }))
		})
	}
}
