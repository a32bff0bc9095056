// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/nodelab"
)

// drops are the packets that the kernel has dropped on their way for want of room: no agent has had them, or a client was
// too slow to take its answer.
type drops struct {
	backlog int            // of packets between namespaces, of the whole machine
	sockets map[string]int // datagrams for which a socket had no room, by host
}

func (b *bed) drops(t *testing.T) drops {
	t.Helper()
	d := drops{sockets: map[string]int{}}
	stat, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(stat)) {
		n, err := strconv.ParseUint(strings.Fields(line)[1], 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		d.backlog += int(n)
	}
	for _, h := range []*nodelab.Host{b.Node, b.Pods[0], b.Pods[1]} {
		err := h.Do(func() error {
			for file, key := range map[string]string{"snmp": "Udp:", "snmp6": "Udp6RcvbufErrors"} {
				text, err := os.ReadFile("/proc/thread-self/net/" + file)
				if err != nil {
					return err
				}
				d.sockets[h.Name] += rcvbufErrors(string(text), key)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// rcvbufErrors reads a counter from either of the kernel's two forms.
func rcvbufErrors(text, key string) int {
	var names []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != key {
			continue
		}
		if key != "Udp:" {
			n, _ := strconv.Atoi(fields[1])
			return n
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if name == "RcvbufErrors" {
				n, _ := strconv.Atoi(fields[i])
				return n
			}
		}
	}
	return 0
}

// since is how many were dropped after an earlier look, and where.
func (d drops) since(before drops) (n int, where string) {
	n = d.backlog - before.backlog
	where = fmt.Sprintf("%d dropped between namespaces", n)
	for _, host := range slices.Sorted(maps.Keys(d.sockets)) {
		more := d.sockets[host] - before.sockets[host]
		n += more
		where += fmt.Sprintf(", %d at sockets of %s", more, host)
	}
	return n, where
}
