// SPDX-License-Identifier: Apache-2.0

package push

// Owners returns the number of owners in the index, and of names that depend on others as aliases.
func (s *Server) Owners() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.index.owners) + len(s.index.aliases)
}
