// SPDX-License-Identifier: Apache-2.0

package kernelhits

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/pods"
)

// A programRun is what a run of the program depends on. The query is for a TXT record of "a.".
type programRun struct {
	*Responder
	family uint32
	frame  []byte
	answer hitsAnswer
	client hitsClient
	gso    uint32 // size of the frame's segments

	nameAnswered uint64 // when the agent answered the question; 0: never
}

const (
	agent6  = "\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02"
	client6 = "\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"
	query6  = "\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02\x86\xdd\x6b\xcd\xef\x01\x00\x1b\x11\x09" + client6 + agent6 + "\x04\x00\x00\x35\x00\x1b\x5b\xa1"
)

// headOf returns the headers of the reply.
func headOf(family uint32) []byte {
	if family == 6 {
		return []byte("\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01\x86\xdd\x60\x00\x00\x00\x01\xdd\x11\x40" + agent6 + client6 + "\x00\x35\x04\x00\x01\xdd\x5d\x63")
	}
	return []byte("\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01\x08\x00\x45\x00\x01\xf1\x00\x00\x40\x00\x40\x11\xb4\xf8\xc0\x00\x02\x02\xc0\x00\x02\x01" +
		"\x00\x35\x04\x00\x01\xdd\x00\x00")
}

func newRun(t *testing.T, k *Responder, family uint32) *programRun {
	t.Helper()
	k.setReplaced(t)
	r := &programRun{Responder: k, family: family, frame: replacedQuery(0), answer: *replacedAnswer(0)}
	from := netip.MustParseAddr("192.0.2.1")
	if family == 6 {
		from = netip.MustParseAddr("2001:db8::1")
		r.frame = append([]byte(query6), r.frame[42:]...)
	}
	r.client = hitsClient{Addr: addressOf(from), Answered: bootTime()}
	r.answer.Epoch, r.answer.Slot, r.answer.Version = k.control.Epoch, [2]uint32{1, 2}, [2]uint32{uint32(k.version[1]), uint32(k.version[2])}
	r.answer.Flags, r.answer.Counts = networkOrder(0x8580), [3]uint16{0x0101, 0x0202, 0x0303}
	k.control.Lease, k.control.Permit, k.control.Changing, k.control.Port = math.MaxInt64, math.MaxInt64, 0, 53
	k.control.NamePermit, k.control.NamesSince = 0, 0
	clear(k.control.Writes[:])
	k.Beat()
	k.Set(true)
	return r
}

// reply returns the packet that the program should leave.
func (r *programRun) reply() []byte {
	head := headOf(r.family)
	udp := len(head) - 8
	copy(head[udp:], r.frame[udp+2:udp+4]) // the port
	flags := binary.NativeEndian.AppendUint16(nil, r.answer.Flags)
	data := slices.Clone(r.answer.Data[:r.answer.Len])
	if r.answer.CountsDown != 0 {
		binary.BigEndian.PutUint32(data[4:], binary.BigEndian.Uint32(data[4:])-10)
	}
	counts := []byte{0, 1}
	for _, count := range r.answer.Counts {
		counts = binary.NativeEndian.AppendUint16(counts, count)
	}
	return slices.Concat(head, r.frame[udp+8:udp+10], flags, counts, []byte("\x01a\x00\x00\x10\x00\x01"), data)
}

// run returns the packet that the program leaves, and the client's state after it.
func (r *programRun) run(t *testing.T) ([]byte, hitsClient) {
	t.Helper()
	const loopback = 1
	client := hitsClientKey{Ifindex: loopback, Family: r.family}
	assert.NoError(t, r.objects.Clients.Put(client, r.client))
	key, _, _ := keyOf(r.frame[len(headOf(r.family)):])
	assert.NoError(t, r.objects.Answers.Put(&key, &r.answer))
	name := hitsNameKey{Hash: hashOf(&key), Ifindex: loopback, Type: key.Type}
	assert.NoError(t, r.objects.Names.Put(&name, r.nameAnswered))
	var ctx [48]uint32 // struct __sk_buff
	ctx[44] = r.gso
	opts := ebpf.RunOptions{Data: r.frame, DataOut: make([]byte, 2048), Context: ctx}
	_, err := r.objects.AnswerHit.Run(&opts)
	assert.NoError(t, err)
	var after hitsClient
	assert.NoError(t, r.objects.Clients.Lookup(client, &after))
	return opts.DataOut, after
}

// TestProgram changes what an answer of the kernel depends on. The query passes as it was, or gets the reply.
func TestProgram(t *testing.T) {
	k := openReplaced(t)
	second := uint64(time.Second)
	tests := []struct {
		name     string
		families string // "4", "6" or "46"
		replies  bool
		change   func(r *programRun)
	}{
		{"all is as it should be", "46", true, func(*programRun) {}},
		{"off", "46", false, func(r *programRun) { r.Set(false) }},
		{"no heartbeat within the lease", "4", false, func(r *programRun) { r.control.Lease, r.control.Heartbeat = second, bootTime()-2*second }},
		{"heartbeat after the clock was read", "4", true, func(r *programRun) { r.control.Lease, r.control.Heartbeat = second, bootTime()+second }},
		{"a write of an answer under way", "4", false, func(r *programRun) {
			for i := range r.control.Writes {
				r.control.Writes[i] = 1
			}
		}},
		{"at its end", "4", false, func(r *programRun) { r.answer.Until = bootTime() }},
		{"other configuration", "4", false, func(r *programRun) { r.Changed(nil) }},
		{"first version", "4", false, func(r *programRun) { r.bump(1) }},
		{"second version", "4", false, func(r *programRun) { r.bump(2) }},
		{"a zone changes", "4", false, func(r *programRun) { r.answer.Zone, r.control.Changing = 1, 1 }},
		{"a zone changes, but it is cached", "4", true, func(r *programRun) { r.control.Changing = 1 }},
		{"longer than the client's limit", "46", false, func(r *programRun) { r.answer.Len = 512 - 19 + 1 }},
		{"no client", "46", false, func(r *programRun) { r.client = hitsClient{} }},
		{"another client, last bytes", "46", false, func(r *programRun) { r.client.Addr.Word[3]++ }},
		{"another client, third word", "6", false, func(r *programRun) { r.client.Addr.Word[2]++ }},
		{"another client, second word", "6", false, func(r *programRun) { r.client.Addr.Word[1]++ }},
		{"another client, first bytes", "6", false, func(r *programRun) { r.client.Addr.Word[0]++ }},
		{"client that the agent has not answered", "46", false, func(r *programRun) { r.client.Answered = 0 }},
		{"client without a permit", "46", false, func(r *programRun) {
			r.control.Permit, r.client.Answered, r.client.Passed = second, bootTime()-2*second, bootTime()
		}},
		{"permitted after the clock was read", "4", true, func(r *programRun) { r.control.Permit, r.client.Answered = second, bootTime()+second }},
		{"permit to renew", "46", false, func(r *programRun) { r.control.Permit, r.client.Answered = 100*second, bootTime()-60*second }},
		{"permit in renewal", "46", true, func(r *programRun) {
			r.control.Permit, r.client.Answered = 100*second, bootTime()-60*second
			_, r.client = r.run(t)
		}},
		{"name that the agent has never answered", "46", false, func(r *programRun) { r.control.NamePermit = second }},
		{"name that the agent has answered", "46", true, func(r *programRun) { r.control.NamePermit, r.nameAnswered = second, bootTime()-second/2 }},
		{"name that the agent has answered long ago", "46", false, func(r *programRun) { r.control.NamePermit, r.nameAnswered = second, bootTime()-2*second }},
		{"name that the agent has answered before the engine forgot all", "4", false, func(r *programRun) {
			r.control.NamePermit, r.nameAnswered = second, bootTime()-second/2
			r.ForgetNames()
		}},
		{"name that the agent has answered with another answer", "4", false, func(r *programRun) {
			r.control.NamePermit, r.nameAnswered, r.answer.Base = second, bootTime()-second/2, bootTime()-second/4
		}},
		{"name whose answer the agent has given since it is this", "4", true, func(r *programRun) {
			r.control.NamePermit, r.nameAnswered, r.answer.Base = second, bootTime()-second/4, bootTime()-second/2
		}},
		{"denial that the agent has never given", "46", true, func(r *programRun) { r.control.NamePermit, r.answer.Counts[0] = second, 0 }},
		{"TTL of the cache", "4", true, func(r *programRun) {
			r.answer.CountsDown, r.answer.Ttls, r.answer.Ttl[0], r.answer.Base = 1, 1, 4, bootTime()-10*second-second/2
		}},
		{"TTL of a zone", "4", true, func(r *programRun) { r.answer.Ttls, r.answer.Ttl[0], r.answer.Base = 1, 4, bootTime()-10*second }},
		{"denial", "4", true, func(r *programRun) { r.answer.Flags = networkOrder(0x8583) }},
		{"denial of the cluster's domain", "4", true, func(r *programRun) { r.answer.Flags, r.answer.Searched = networkOrder(0x8583), 1 }},
		{"answer of the cluster's domain", "4", true, func(r *programRun) { r.answer.Searched = 1 }},
		{"not the agent's address", "46", false, func(r *programRun) {
			assert.NoError(t, r.SetDestinations([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.3:53"), netip.MustParseAddrPort("[2001:db8::3]:53")}))
		}},
		{"the port of the agent's sockets", "4", true, func(r *programRun) {
			r.control.Port = 0x1435
			r.frame[36] = 0x14
			assert.NoError(t, r.SetDestinations([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:5173")}))
		}},
		{"OPT record", "4", true, func(r *programRun) { r.frame = addOPT(r.frame, "\x00\x00\x29\x04\xd0\x00\x00\x80\x00\x00\x00") }},
		{"OPT record with an RCODE", "4", false, func(r *programRun) { r.frame = addOPT(r.frame, "\x00\x00\x29\x04\xd0\x01\x00\x00\x00\x00\x00") }},
		{"OPT record with unknown flags", "4", false, func(r *programRun) { r.frame = addOPT(r.frame, "\x00\x00\x29\x04\xd0\x00\x00\xc0\x00\x00\x00") }},
		{"OPT record with more unknown flags", "4", false, func(r *programRun) { r.frame = addOPT(r.frame, "\x00\x00\x29\x04\xd0\x00\x00\x00\x01\x00\x00") }},
		{"another protocol", "4", false, func(r *programRun) { r.frame[23] = 136; copy(r.frame[24:], "\x2d\x41") }},
		{"another protocol", "6", false, func(r *programRun) { r.frame[20] = 136 }},
		{"options", "4", false, func(r *programRun) { r.frame[14] = 0x46; copy(r.frame[24:], "\x2c\xb8") }},
		{"another version", "4", false, func(r *programRun) { r.frame[14] = 0x55; copy(r.frame[24:], "\x1d\xb8") }},
		{"neither IPv4 nor IPv6", "46", false, func(r *programRun) { r.frame[12] = 0x99 }},
		{"no checksum", "6", false, func(r *programRun) { r.frame[60], r.frame[61] = 0, 0 }},
		{"checksum that is right as a whole one and as a partial one", "4", false, func(r *programRun) { copy(r.frame[40:], "\x84\x30\xdf\xec") }},
		{"segments", "46", false, func(r *programRun) { r.gso = 16 }},
	}
	for _, tt := range tests {
		for i, family := range families() {
			if !strings.Contains(tt.families, fmt.Sprint(family)) {
				continue
			}
			what := fmt.Sprintf("IPv%d, %s: ", family, tt.name)
			r, want := newRun(t, k, family), hitsClient{}
			tt.change(r)
			before, packet := k.table.read(0), r.frame
			got, client := r.run(t)
			if tt.replies {
				var c pods.Counts
				c.Count(1, pods.FromMemory, int(networkOrder(r.answer.Flags)&0xf), r.answer.Searched != 0, 469)
				packet, want.Hits, want.Denied, want.Searched, want.Bytes = r.reply(), c[pods.FromMemory], c[pods.Denied], c[pods.Searched], c[pods.Bytes]
				before[i]++
			}
			if !bytes.Equal(got, packet) {
				t.Errorf("%spacket %x, want %x", what, got, packet)
			}
			assert.Same(t, what+"counts of the answer", before, k.table.read(0))
			client.Answered, client.Passed, client.Addr = 0, 0, hitsAddress{}
			assert.Same(t, what+"counts of the client", want, client)
		}
	}
}

// TestRenew renews the lease of the program, unless the agent does not answer.
func TestRenew(t *testing.T) {
	k := openReplaced(t)
	const before = 1
	for _, tt := range []struct {
		name   string
		lapsed bool
		busy   time.Duration
		want   func(heartbeat uint64) bool
	}{
		{"idle", false, 0, func(heartbeat uint64) bool { return heartbeat > before }},
		{"a long batch", false, time.Hour / 2, func(heartbeat uint64) bool { return heartbeat == before }},
		{"no lease", true, 0, func(heartbeat uint64) bool { return heartbeat == 0 }},
	} {
		k.control.Heartbeat = before
		k.cfg.Lapsed, k.cfg.Busy = func() bool { return tt.lapsed }, func() time.Duration { return tt.busy }
		k.renew()
		if got := k.control.Heartbeat; !tt.want(got) {
			t.Errorf("%s: heartbeat %d", tt.name, got)
		}
	}
}
