// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"
	"time"
)

// Left says whether an agent put rules into the iptables of the calling thread's network
// namespace, or was about to, by the sets beside them. It runs no program, and needs the capability
// NET_ADMIN only. An error says that the kernel does not tell.
func Left() (bool, error) {
	s, err := openSets()
	if err != nil {
		return false, err
	}
	defer s.handle.Close()
	notes, err := s.readNotes()
	if err != nil || len(notes) > 0 {
		return len(notes) > 0, err
	}
	// An agent that ended just before its first rules has left sets and no notes.
	for _, v6 := range []bool{false, true} {
		if found, err := s.leases(v6, map[netip.Addr]time.Duration{}); err != nil || found {
			return found, err
		}
	}
	return false, nil
}
