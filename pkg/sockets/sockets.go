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

// A Socket takes packets or sessions from any client.
type Socket struct {
	TCP     bool
	Local   netip.AddrPort // may be an unspecified address
	UID     int
	Inode   uint64
	PID     int    // 0: not visible
	Program string // of PID
}

// Accepts reports whether packets to a get to the socket, unless one with a more specific address has them.
func (s *Socket) Accepts(a netip.Addr) bool {
	local := s.Local.Addr()
	return local == a || local.IsUnspecified() && (local.Is6() || a.Is4())
}

// Owner names the process that has the socket.
func (s *Socket) Owner() string {
	if s.PID == 0 {
		return fmt.Sprintf("a process of user %d", s.UID)
	}
	return fmt.Sprintf("%s (process %d)", s.Program, s.PID)
}

// AddProcesses fills in the process of each socket, as far as the folder proc shows it.
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

// links reads the links of a folder; none if it may not be seen.
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

// program is the name of a process's program, at most 15 bytes; empty if the process has ended.
func program(dir string) string {
	text, err := os.ReadFile(filepath.Join(dir, "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
