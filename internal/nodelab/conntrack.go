// SPDX-License-Identifier: Apache-2.0

package nodelab

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Flow is a connection that a host's connection tracking knows.
type Flow struct {
	Protocol           uint8          // IPPROTO_UDP, IPPROTO_TCP, …
	Src, Dst           netip.AddrPort // of the packets in the direction of the first one
	ReplySrc, ReplyDst netip.AddrPort // of those in the other direction
	Zone               uint16
}

// String is the flow as a test would print it.
func (f Flow) String() string {
	return fmt.Sprintf("protocol %d, %s to %s, replies %s to %s, zone %d", f.Protocol, f.Src, f.Dst, f.ReplySrc, f.ReplyDst, f.Zone)
}

// Conntrack lists what the host's connection tracking knows, both families.
func Conntrack(h *Host) ([]Flow, error) {
	var flows []Flow
	err := h.Do(func() error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			list, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return fmt.Errorf("listing connections of host %s: %w", h.Name, err)
			}
			for _, c := range list {
				f := Flow{Protocol: c.Forward.Protocol, Zone: c.Zone}
				f.Src, f.Dst = ends(c.Forward)
				f.ReplySrc, f.ReplyDst = ends(c.Reverse)
				flows = append(flows, f)
			}
		}
		return nil
	})
	return flows, err
}

// ConntrackOf lists what the host's connection tracking knows of one address and port, in either direction.
func ConntrackOf(h *Host, addr netip.AddrPort) ([]Flow, error) {
	all, err := Conntrack(h)
	var flows []Flow
	for _, f := range all {
		if f.Src == addr || f.Dst == addr || f.ReplySrc == addr || f.ReplyDst == addr {
			flows = append(flows, f)
		}
	}
	return flows, err
}

func ends(t netlink.IPTuple) (src, dst netip.AddrPort) {
	s, _ := netip.AddrFromSlice(t.SrcIP)
	d, _ := netip.AddrFromSlice(t.DstIP)
	return netip.AddrPortFrom(s.Unmap(), t.SrcPort), netip.AddrPortFrom(d.Unmap(), t.DstPort)
}
