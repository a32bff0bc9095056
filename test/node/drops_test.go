// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
)

// drops are the packets that the kernel has dropped on their way for lack of room: no agent has had them, or a client was
// too slow to take its answer. The key says where.
type drops map[string]int

// drops counts what was dropped so far, by the whole machine between namespaces and by the sockets and links of each host.
func (b *harness) drops(t *testing.T) drops {
	t.Helper()
	d := drops{}
	stat, err := os.ReadFile("/proc/net/softnet_stat")
	assert.NoError(t, err)
	for line := range strings.Lines(string(stat)) {
		n, err := strconv.ParseUint(strings.Fields(line)[1], 16, 32)
		assert.NoError(t, err)
		d["between namespaces"] += int(n)
	}
	for _, h := range b.Hosts() {
		err := h.Do(func() error {
			for _, file := range []string{"snmp", "snmp6"} {
				text, err := os.ReadFile("/proc/thread-self/net/" + file)
				if err != nil {
					return err
				}
				d.read(h.Name, string(text))
			}
			return nil
		})
		assert.NoError(t, err)
	}
	return d
}

// read adds the counters of a host from either of the kernel's two forms: a line of names and one of numbers, or a line for
// each.
func (d drops) read(host, text string) {
	var names []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 2:
			d.note(host, fields[0], fields[1])
		case len(fields) > 2 && fields[0] == "Udp:" && names == nil:
			names = fields
		case len(fields) > 2 && fields[0] == "Udp:":
			for i, name := range names {
				d.note(host, "Udp"+name, fields[i])
			}
		}
	}
}

// note adds a counter if it is one of datagrams that a socket had no room for.
func (d drops) note(host, name, value string) {
	_, what, ok := strings.Cut(name, "Udp")
	if ok && slices.Contains([]string{"RcvbufErrors", "SndbufErrors", "MemErrors"}, strings.TrimPrefix(what, "6")) {
		n, _ := strconv.Atoi(value)
		d[host+" "+name] += n
	}
}

// since is how many were dropped after an earlier look, and where.
func (d drops) since(before drops) (n int, where string) {
	var all []string
	for key, now := range d {
		if more := now - before[key]; more > 0 {
			n += more
			all = append(all, fmt.Sprintf("%d %s", more, key))
		}
	}
	slices.Sort(all)
	return n, strings.Join(all, ", ")
}
