// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A Socket is a socket that accepts packets or connections from any client.
type Socket struct {
	TCP     bool
	Local   netip.AddrPort // the address may be unspecified
	UID     int
	Inode   uint64
	PID     int    // 0: not visible
	Program string // of PID
}

// Accepts reports whether the socket gets packets to a, unless a socket with a more specific
// address does.
func (s *Socket) Accepts(a netip.Addr) bool {
	local := s.Local.Addr()
	return local == a || local.IsUnspecified() && (local.Is6() || a.Is4())
}

// Owner describes the process that owns the socket.
func (s *Socket) Owner() string {
	if s.PID == 0 {
		return fmt.Sprintf("a process of user %d", s.UID)
	}
	return fmt.Sprintf("%s (process %d)", s.Program, s.PID)
}

// AddProcesses sets PID and Program of each socket, as far as the folder proc shows them.
func AddProcesses(list []Socket, proc string) {
	of := map[string][]*Socket{}
	for i := range list {
		link := "socket:[" + strconv.FormatUint(list[i].Inode, 10) + "]"
		of[link] = append(of[link], &list[i])
	}
	processes, err := os.ReadDir(proc)
	if err != nil {
		return
	}
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || len(of) == 0 {
			continue
		}
		dir := filepath.Join(proc, p.Name())
		for _, link := range links(filepath.Join(dir, "fd")) {
			for _, s := range of[link] {
				s.PID, s.Program = pid, program(dir)
			}
			delete(of, link)
		}
	}
}

// links returns the targets of the links in a folder, or nil if it cannot be read.
func links(folder string) (list []string) {
	files, err := os.ReadDir(folder)
	if err != nil {
		return nil
	}
	for _, f := range files {
		if link, err := os.Readlink(filepath.Join(folder, f.Name())); err == nil {
			list = append(list, link)
		}
	}
	return list
}

// program returns the name of a process, at most 15 bytes, or "" if the process has ended.
func program(dir string) string {
	text, err := os.ReadFile(filepath.Join(dir, "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
