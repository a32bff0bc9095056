// SPDX-License-Identifier: Apache-2.0

package iptables

// Left says whether an agent put rules into the iptables of the calling thread's network
// namespace, by what it notes beside them. It runs no program, and needs the capability
// NET_ADMIN only. An error says that the kernel does not tell.
func Left() (bool, error) {
	s, err := openSets()
	if err != nil {
		return false, err
	}
	defer s.handle.Close()
	notes, err := s.notes()
	return len(notes) > 0, err
}
