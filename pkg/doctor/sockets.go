// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// inode is the number of a socket; 0: none.
type inode uint64

// sockets lists the sockets on port that take packets from anybody, with the
// processes that have them as far as /proc shows those. self is the folder of this
// process in proc.
func sockets(proc, self string, port uint16) ([]Socket, error) {
	var list []Socket
	of := map[inode][]int{} // indices of list
	for _, file := range []string{"udp", "udp6", "tcp", "tcp6"} {
		text, err := os.ReadFile(filepath.Join(self, "net", file))
		if errors.Is(err, os.ErrNotExist) {
			continue // no such family
		}
		if err != nil {
			return nil, fmt.Errorf("listing sockets: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			socket, ino, ok := parseSocket(line, strings.HasPrefix(file, "tcp"))
			if ok && socket.Local.Port() == port {
				of[ino] = append(of[ino], len(list))
				list = append(list, socket)
			}
		}
	}
	name(list, of, proc)
	return list, nil
}

// name says of each socket of list which process has it; of are their indices.
func name(list []Socket, of map[inode][]int, proc string) {
	for _, p := range processes(proc) {
		if len(of) == 0 {
			return
		}
		for _, ino := range p.sockets() {
			for _, i := range of[ino] {
				list[i].PID, list[i].Program = p.pid, p.name()
			}
			delete(of, ino)
		}
	}
}

// parseSocket reads a line of /proc/net/udp or its likes. It is not ok for headings
// and for sockets that are connected.
func parseSocket(line string, tcp bool) (s Socket, ino inode, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 10 {
		return Socket{}, 0, false
	}
	state := fields[3]
	if tcp && state != "0A" || !tcp && state != "07" { // TCP_LISTEN, TCP_CLOSE
		return Socket{}, 0, false
	}
	local, ok := parseHex(fields[1])
	uid, err := strconv.Atoi(fields[7])
	number, err2 := strconv.ParseUint(fields[9], 10, 64)
	if !ok || err != nil || err2 != nil {
		return Socket{}, 0, false
	}
	return Socket{TCP: tcp, Local: local, UID: uid}, inode(number), true
}

// parseHex reads an address as /proc/net writes it: words of 32 bits in the order of
// this machine, then the port.
func parseHex(text string) (netip.AddrPort, bool) {
	host, port, ok := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	number, err2 := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || err2 != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for word := raw; len(word) > 0; word = word[4:] {
		binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
	}
	a, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(a, uint16(number)), ok
}

// A process is one that /proc shows.
type process struct {
	dir string
	pid int
}

func processes(proc string) []process {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	var list []process
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			list = append(list, process{dir: filepath.Join(proc, e.Name()), pid: pid})
		}
	}
	return list
}

// name is the name of the program, at most 15 bytes; "" if the process has ended.
func (p process) name() string {
	text, err := os.ReadFile(filepath.Join(p.dir, "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// sockets are those that the process has open; none if that may not be seen.
func (p process) sockets() []inode {
	entries, err := os.ReadDir(filepath.Join(p.dir, "fd"))
	if err != nil {
		return nil
	}
	var list []inode
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(p.dir, "fd", e.Name()))
		if err != nil {
			continue
		}
		number, ok := strings.CutPrefix(target, "socket:[")
		if ino, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64); ok && err == nil {
			list = append(list, inode(ino))
		}
	}
	return list
}

// lacks says whether the process lacks a capability, by its number.
func (p process) lacks(capability uint) (bool, error) {
	text, err := os.ReadFile(filepath.Join(p.dir, "status"))
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return set>>capability&1 == 0, err
		}
	}
	return false, errors.New("no rights are shown")
}

// netns names the network namespace of the process; "" if that may not be seen.
func (p process) netns() string {
	name, err := os.Readlink(filepath.Join(p.dir, "ns/net"))
	if err != nil {
		return ""
	}
	return name
}
