// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Flow is an entry in a host's connection tracking table.
type Flow struct {
	Protocol           uint8          // IPPROTO_UDP, IPPROTO_TCP, …
	Src, Dst           netip.AddrPort // original direction
	ReplySrc, ReplyDst netip.AddrPort // reply direction
	Zone               uint16
}

// String formats the flow for test output.
func (f Flow) String() string {
	return fmt.Sprintf("protocol %d, %s to %s, replies %s to %s, zone %d", f.Protocol, f.Src, f.Dst, f.ReplySrc, f.ReplyDst, f.Zone)
}

// ConntrackOf lists the host's tracked connections from or to an address and port.
func ConntrackOf(h *Host, addr netip.AddrPort) ([]Flow, error) {
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
				if f.Src == addr || f.Dst == addr || f.ReplySrc == addr || f.ReplyDst == addr {
					flows = append(flows, f)
				}
			}
		}
		return nil
	})
	return flows, err
}

func ends(t netlink.IPTuple) (src, dst netip.AddrPort) {
	s, _ := netip.AddrFromSlice(t.SrcIP)
	d, _ := netip.AddrFromSlice(t.DstIP)
	return netip.AddrPortFrom(s.Unmap(), t.SrcPort), netip.AddrPortFrom(d.Unmap(), t.DstPort)
}
