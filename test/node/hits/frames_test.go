// SPDX-License-Identifier: Apache-2.0

package hits

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/internal/assert"
)

// The kinds of UDP checksums that a frame may have.
type checksum int

const (
	whole   checksum = iota
	partial          // left to the device
	garbage          // the same, with any bytes in the field
	zero
	wrong
	pseudo // of the pseudo header alone, and not left to the device
)

// A frame is a packet of a pod, before it is packed.
type frame struct {
	family   int
	to, from net.HardwareAddr
	tags     []byte // before the type
	ip       []byte
	rest     []byte // of the IP header: options or extension headers
	udp      []byte
	payload  []byte
	trailer  []byte
	checksum checksum
	ipWrong  bool
}

// pod sends frames and receives at this port.
const framePort = 40053

// newFrame is a frame with a query that the kernel answers.
func newFrame(p *pod, family int, from, to net.HardwareAddr) *frame {
	f := &frame{family: family, from: from, to: to, payload: query("web.shop.svc.cluster.local.", dns.TypeTXT)}
	f.udp = binary.BigEndian.AppendUint16(nil, framePort)
	f.udp = append(f.udp, 0, 53, 0, 0, 0, 0)
	binary.BigEndian.PutUint16(f.udp[4:], uint16(8+len(f.payload)))
	if family == 0 {
		f.ip = slices.Concat([]byte{0x45, 0, 0, 0, 0, 9, 0x40, 0, 64, 17, 0, 0}, p.addrs[0].AsSlice(), agentAddrs[0].AsSlice())
		binary.BigEndian.PutUint16(f.ip[2:], uint16(20+8+len(f.payload)))
	} else {
		f.ip = slices.Concat([]byte{0x60, 0, 0, 0, 0, 0, 17, 64}, p.addrs[1].AsSlice(), agentAddrs[1].AsSlice())
		binary.BigEndian.PutUint16(f.ip[4:], uint16(8+len(f.payload)))
	}
	return f
}

// addIP corrects the IP header for so many bytes more.
func (f *frame) addIP(n int) {
	at := 2 + 2*f.family
	binary.BigEndian.PutUint16(f.ip[at:], binary.BigEndian.Uint16(f.ip[at:])+uint16(n))
}

// setOptions adds options to an IPv4 header, or an extension header of that kind.
func (f *frame) setOptions(kind byte, rest []byte) {
	f.rest = rest
	f.addIP(len(rest))
	if f.family == 0 {
		f.ip[0] = 0x45 + byte(len(rest)/4)
	} else {
		f.ip[6] = kind
	}
}

// sum adds up the bytes in ones' complement.
func sum(data ...[]byte) uint16 {
	s := uint32(0)
	for _, d := range data {
		for ; len(d) > 1; d = d[2:] {
			s += uint32(d[0])<<8 | uint32(d[1])
		}
		if len(d) == 1 {
			s += uint32(d[0]) << 8
		}
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// pack returns the frame behind a struct virtio_net_hdr.
func (f *frame) pack() []byte {
	if f.family == 0 {
		header := slices.Concat(f.ip, f.rest)
		check := ^sum(header)
		if f.ipWrong {
			check++
		}
		binary.BigEndian.PutUint16(f.ip[10:], check)
	}
	addrs := f.ip[len(f.ip)-8:]
	if f.family == 1 {
		addrs = f.ip[len(f.ip)-32:]
	}
	head := sum(addrs, []byte{0, 17}, f.udp[4:6])
	check := ^sum(addrs, []byte{0, 17}, f.udp[4:6], f.udp[:6], f.payload)
	if check == 0 {
		check = 0xffff
	}
	check = map[checksum]uint16{whole: check, partial: head, garbage: 0x1234, wrong: check - 1, pseudo: head}[f.checksum]
	binary.BigEndian.PutUint16(f.udp[6:], check)
	kind := []byte{0x08, 0x00}
	if f.family == 1 {
		kind = []byte{0x86, 0xdd}
	}
	out := make([]byte, 10)
	ether := slices.Concat(f.to, f.from, f.tags, kind)
	if f.checksum == partial || f.checksum == garbage {
		out[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
		binary.NativeEndian.PutUint16(out[6:], uint16(len(ether)+len(f.ip)+len(f.rest)))
		binary.NativeEndian.PutUint16(out[8:], 6)
	}
	return slices.Concat(out, ether, f.ip, f.rest, f.udp, f.payload, f.trailer)
}

// A frameCase is a change of a frame.
type frameCase struct {
	name     string
	families string // "4", "6" or "46"
	kernel   bool   // it answers
	edit     func(f *frame)
}

func frameCases() []frameCase {
	nothing := func(*frame) {}
	setChecksum := func(c checksum) func(f *frame) { return func(f *frame) { f.checksum = c } }
	return []frameCase{
		{"checksum left to the device", "46", true, nothing},
		{"whole checksum", "4", true, setChecksum(whole)},
		{"whole checksum", "6", false, setChecksum(whole)},
		{"no checksum", "4", true, setChecksum(zero)},
		{"no checksum", "6", false, setChecksum(zero)},
		{"wrong checksum", "46", false, setChecksum(wrong)},
		{"left to the device, other bytes", "46", false, setChecksum(garbage)},
		{"class, label and hop limit", "6", true, func(f *frame) { f.ip[0], f.ip[1], f.ip[2], f.ip[7] = 0x6b, 0xcd, 0xef, 1 }},
		{"TOS, ID, fragments allowed, TTL of 1", "4", true, func(f *frame) { f.ip[1], f.ip[4], f.ip[6], f.ip[8] = 0xff, 7, 0, 1 }},
		{"reserved flag", "4", true, func(f *frame) { f.ip[6] |= 0x80 }},
		{"wrong IP checksum", "4", false, func(f *frame) { f.ipWrong = true }},
		{"another IP version", "46", false, func(f *frame) { f.ip[0] ^= 0x20 }},
		{"another protocol", "4", false, func(f *frame) { f.ip[9] = 136 }},
		{"another protocol", "6", false, func(f *frame) { f.ip[6] = 136 }},
		{"options", "4", false, func(f *frame) { f.setOptions(0, []byte{1, 1, 1, 0}) }},
		{"hop-by-hop options", "6", false, func(f *frame) { f.setOptions(0, []byte{17, 0, 1, 4, 0, 0, 0, 0}) }},
		{"destination options", "6", false, func(f *frame) { f.setOptions(60, []byte{17, 0, 1, 4, 0, 0, 0, 0}) }},
		{"atomic fragment", "6", false, func(f *frame) { f.setOptions(44, []byte{17, 0, 0, 0, 0, 0, 0, 1}) }},
		{"first fragment", "6", false, func(f *frame) { f.setOptions(44, []byte{17, 0, 0, 1, 0, 0, 0, 2}) }},
		{"no next header", "6", false, func(f *frame) { f.setOptions(59, []byte{17, 0, 1, 4, 0, 0, 0, 0}) }},
		{"first fragment", "4", false, func(f *frame) { f.ip[6] = 0x20 }},
		{"last fragment", "4", false, func(f *frame) { f.ip[6], f.ip[7] = 0, 8 }},
		{"padding of the link", "46", false, func(f *frame) { f.trailer = make([]byte, 12) }},
		{"IP length beyond the frame", "46", false, func(f *frame) { f.addIP(4) }},
		{"IP length inside the datagram", "46", false, func(f *frame) { f.addIP(-4) }},
		{"bytes behind the datagram", "46", false, func(f *frame) { f.addIP(4); f.trailer = []byte("more") }},
		{"UDP length beyond the packet", "46", false, func(f *frame) { f.udp[5]++ }},
		{"UDP length of 0", "46", false, func(f *frame) { f.udp[5] = 0 }},
		{"UDP length of 7", "46", false, func(f *frame) { f.udp[5] = 7 }},
		{"UDP length inside the packet", "46", false, func(f *frame) {
			f.checksum = whole
			f.udp[5]--
			f.payload, f.trailer = f.payload[:len(f.payload)-1], f.payload[len(f.payload)-1:]
		}},
		{"source port 0", "46", false, func(f *frame) { f.udp[0], f.udp[1] = 0, 0 }},
		{"another port", "46", false, func(f *frame) { f.udp[3] = 54 }},
		{"another address of the node", "4", false, func(f *frame) { copy(f.ip[16:], []byte{10, 200, 0, 1}) }},
		{"another address of the node", "6", false, func(f *frame) { copy(f.ip[24:], netip.MustParseAddr("fd00:200::1").AsSlice()) }},
		{"mapped address", "6", false, func(f *frame) { copy(f.ip[24:], netip.AddrFrom16(agentAddrs[0].As16()).AsSlice()) }},
		{"address of another pod", "46", false, func(f *frame) { f.ip[8*(2+f.family)-1-f.family] ^= 0x40 }},
		{"source on the node", "4", false, func(f *frame) { copy(f.ip[12:], agentAddrs[0].AsSlice()) }},
		{"loopback source", "4", false, func(f *frame) { copy(f.ip[12:], []byte{127, 0, 0, 1}) }},
		{"priority tag", "46", false, func(f *frame) { f.tags = []byte{0x81, 0, 0xe0, 0} }},
		{"VLAN tag", "46", false, func(f *frame) { f.tags = []byte{0x81, 0, 0, 7} }},
		{"two VLAN tags", "46", false, func(f *frame) { f.tags = []byte{0x88, 0xa8, 0, 7, 0x81, 0, 0, 0} }},
		{"broadcast", "46", false, func(f *frame) { f.to = net.HardwareAddr{255, 255, 255, 255, 255, 255} }},
		{"multicast", "46", false, func(f *frame) { f.to = net.HardwareAddr{1, 0, 0x5e, 0, 0, 1} }},
		{"a question at the end of the frame", "46", true, func(f *frame) {
			size := len(f.payload)
			f.payload = query("www.test.", dns.TypeTXT)
			f.udp[5] += byte(len(f.payload) - size)
			f.addIP(len(f.payload) - size)
		}},
	}
}

// TestFrames sends each frame with hits in the kernel and without. A frame is compared with what the process receives and replies.
func TestFrames(t *testing.T) {
	n := startNode(t)
	if n == nil {
		return
	}
	for i, p := range n.pods[:2] {
		s := n.openSender(t, p, []string{"pod-routed", "br0"}[i])
		for family, name := range families {
			c := p.dial(t, family)
			for _, name := range []string{"www.test.", "web.shop.svc.cluster.local."} {
				if !n.prime(t, c, query(name, dns.TypeTXT)) {
					t.Fatalf("%s of a %s pod: the kernel does not answer", name, p.name)
				}
			}
			for _, tt := range frameCases() {
				if !slices.Contains([]byte(tt.families), "46"[family]) {
					continue
				}
				what := p.name + " " + name + ", " + tt.name
				n.prime(t, c, query("web.shop.svc.cluster.local.", dns.TypeTXT))
				var want expected
				n.kernel.Set(false)
				reply, received := s.exchange(t, n, tt.edit, family)
				want.add(reply)
				n.kernel.Set(true)
				reply, with := s.exchange(t, n, tt.edit, family)
				if tt.kernel {
					with++
				}
				if diff := want.differ(reply); diff != "" {
					t.Errorf("%s: %s: %x", what, diff, reply)
				}
				assert.Equal(t, what+": packets that the process received, and the kernel answered", received, with)
			}
		}
	}
}

// A sender sends frames of a pod.
type sender struct {
	pod      *pod
	raw      int
	link     unix.SockaddrLinklayer
	from, to net.HardwareAddr
	receive  [2]*net.UDPConn // by family
}

// openSender makes a sender whose frames go to a link of the node.
func (n *node) openSender(t *testing.T, p *pod, to string) *sender {
	t.Helper()
	near, err := netlink.LinkByName(to)
	assert.NoError(t, err)
	s := &sender{pod: p, to: near.Attrs().HardwareAddr}
	assert.NoError(t, p.Do(func() error {
		eth, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		s.from, s.link.Ifindex = eth.Attrs().HardwareAddr, eth.Attrs().Index
		if s.raw, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		for family, network := range []string{"udp4", "udp6"} {
			if s.receive[family], err = net.ListenUDP(network, &net.UDPAddr{Port: framePort}); err != nil {
				return err
			}
		}
		return unix.SetsockoptInt(s.raw, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1)
	}))
	t.Cleanup(func() {
		_ = unix.Close(s.raw)
		for _, c := range s.receive {
			_ = c.Close()
		}
	})
	return s
}

// exchange sends a frame. It returns the reply, and how many packets the process received.
func (s *sender) exchange(t *testing.T, n *node, edit func(*frame), family int) (reply []byte, received uint64) {
	t.Helper()
	f := newFrame(s.pod, family, s.from, s.to)
	f.checksum = partial
	edit(f)
	before := n.received()
	assert.NoError(t, unix.Sendto(s.raw, f.pack(), 0, &s.link))
	c := s.receive[family]
	_, err := c.WriteToUDPAddrPort(marker, netip.AddrPortFrom(agentAddrs[family], 53))
	assert.NoError(t, err)
	reply = receive(t, c)
	return reply, n.received() - before - 1
}

// TestSegments sends two queries as one packet (UDP_SEGMENT).
func TestSegments(t *testing.T) {
	n := startNode(t)
	if n == nil {
		return
	}
	pkt := query("www.test.", dns.TypeTXT)
	for _, p := range n.pods[:2] {
		for family, name := range families {
			c := p.dial(t, family)
			if !n.prime(t, c, pkt) {
				t.Fatalf("%s of a %s pod: the kernel does not answer", name, p.name)
			}
			raw, err := c.SyscallConn()
			assert.NoError(t, err)
			assert.NoError(t, raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, len(pkt))
			}))
			assert.NoError(t, err)
			var want expected
			for _, on := range []bool{false, true} {
				n.kernel.Set(on)
				_, err := c.Write(append(slices.Clone(pkt), pkt...))
				assert.NoError(t, err)
				assert.NoError(t, c.SetReadDeadline(time.Now().Add(5*time.Second)))
				for range 2 {
					reply := make([]byte, 512)
					size, err := c.Read(reply)
					assert.NoError(t, err)
					reply = reply[:size]
					if !on {
						want.add(reply)
					}
					if diff := want.differ(reply); diff != "" {
						t.Errorf("%s of a %s pod, kernel %t: %s: %x", name, p.name, on, diff, reply)
					}
				}
			}
		}
	}
}
