// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
)

// A pod forges "fragmentation needed" (ICMP) from the path to itself: the answers that follow are sent in one piece.
func TestForgedPathMTU(t *testing.T) {
	t.Parallel()
	hosts := nodetest.Start(t, nodetest.Options{Pods: 1, NoIPv6: true})
	node, pod := netip.AddrPortFrom(hosts.Node.IPv4, 53), hosts.Pods[0]
	u := newUDP(t, server.UDPConfig{Addr: node, Readers: 1, Handler: servertest.New(map[string]servertest.Rule{"large.test": {Size: 1232}})})
	assert.NoError(t, hosts.Node.Do(func() error { return u.Listen(t.Context()) }))
	run(t, u)

	if err := pod.Do(func() error {
		raw, err := net.Dial("ip4:icmp", node.Addr().String())
		if err != nil {
			return err
		}
		defer func() { _ = raw.Close() }()
		_, err = raw.Write(fragmentationNeeded(node, netip.AddrPortFrom(pod.IPv4, 5353), 552))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	before := fragments(t, hosts.Node)
	conn, err := pod.Dial(t.Context(), "udp", node.String())
	assert.NoError(t, err)
	defer func() { _ = conn.Close() }()
	write(t, conn, servertest.Query(1, "large.test"))
	reply := make([]byte, 2048)
	n, err := conn.Read(reply)
	assert.NoError(t, err)
	if after := fragments(t, hosts.Node); n != 1232 || after != before {
		t.Errorf("an answer of %d bytes in %s fragments, before it %s, want 1232 bytes and none", n, after, before)
	}
}

// fragmentationNeeded is the ICMP message of a router that cannot send a UDP packet on in one piece.
func fragmentationNeeded(from, to netip.AddrPort, mtu uint16) []byte {
	msg := make([]byte, 8+20+8)
	msg[0], msg[1] = 3, 4 // destination unreachable, fragmentation needed
	binary.BigEndian.PutUint16(msg[6:], mtu)
	ip := msg[8:]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], 1260)
	copy(ip[12:], from.Addr().AsSlice())
	copy(ip[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[20:], from.Port())
	binary.BigEndian.PutUint16(ip[22:], to.Port())
	binary.BigEndian.PutUint16(ip[24:], 1240)
	sum := uint32(0)
	for i := 0; i < len(msg); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(msg[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(msg[2:], ^uint16(sum+sum>>16))
	return msg
}

// fragments is how many fragments a host has made.
func fragments(t *testing.T, host *nodetest.Host) string {
	t.Helper()
	var data []byte
	if err := host.Do(func() (err error) {
		data, err = os.ReadFile("/proc/thread-self/net/snmp")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	names, values := strings.Fields(lines[0]), strings.Fields(lines[1])
	for i, name := range names {
		if name == "FragCreates" {
			return values[i]
		}
	}
	t.Fatal(fmt.Errorf("no FragCreates in %q", lines[0]))
	return ""
}
