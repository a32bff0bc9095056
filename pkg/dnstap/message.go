// SPDX-License-Identifier: Apache-2.0

package dnstap

import (
	"encoding/binary"
	"net/netip"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/nodecache/node-cache/pkg/wire"
)

// The fields and values of dnstap.proto that are used.
const (
	dnstapIdentity protowire.Number = 1
	dnstapVersion  protowire.Number = 2
	dnstapExtra    protowire.Number = 3
	dnstapMessage  protowire.Number = 14
	dnstapType     protowire.Number = 15

	messageType             protowire.Number = 1
	messageSocketFamily     protowire.Number = 2
	messageSocketProtocol   protowire.Number = 3
	messageQueryAddress     protowire.Number = 4
	messageResponseAddress  protowire.Number = 5
	messageQueryPort        protowire.Number = 6
	messageResponsePort     protowire.Number = 7
	messageQueryTimeSec     protowire.Number = 8
	messageQueryTimeNsec    protowire.Number = 9
	messageQuery            protowire.Number = 10
	messageResponseTimeSec  protowire.Number = 12
	messageResponseTimeNsec protowire.Number = 13
	messageResponse         protowire.Number = 14

	typeMessage = 1

	clientQuery       = 5
	clientResponse    = 6
	forwarderQuery    = 7
	forwarderResponse = 8

	familyINET, familyINET6 = 1, 2

	protocolUDP, protocolTCP, protocolDOT, protocolDOH = 1, 2, 3, 4
)

// protocolOf returns the protocol of an upstream's network.
func protocolOf(network string) uint64 {
	switch network {
	case "udp":
		return protocolUDP
	case "tls":
		return protocolDOT
	case "https":
		return protocolDOH
	}
	return protocolTCP
}

// A message is one dnstap message. Zero values are left out.
type message struct {
	kind            uint64 // Message.Type of dnstap.proto, such as clientQuery
	protocol        uint64 // SocketProtocol of dnstap.proto
	client, server  netip.AddrPort
	extra           []byte    // text; empty: none
	asked, answered time.Time // when the query and the response were sent or received
	query, response []byte
	id              uint16 // DNS message ID of the query, which the response gets too
}

// append appends the message as a data frame of Frame Streams: 4 bytes of length and a Dnstap of dnstap.proto. head has
// the fields that all messages share.
func (m *message) append(dst, head []byte) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = append(dst, head...)
	if len(m.extra) > 0 {
		dst = appendBytes(dst, dnstapExtra, m.extra)
	}
	dst = protowire.AppendTag(dst, dnstapMessage, protowire.BytesType)
	// The length is not known yet. Three bytes hold the length of any message, because a varint may be padded.
	length := len(dst)
	dst = append(dst, 0, 0, 0)
	dst = m.appendFields(dst)
	n := len(dst) - length - 3
	dst[length], dst[length+1], dst[length+2] = byte(n)|0x80, byte(n>>7)|0x80, byte(n>>14)
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4)) //nolint:gosec // two messages of 64 KiB at most
	return dst
}

func (m *message) appendFields(dst []byte) []byte {
	dst = appendUint(dst, messageType, m.kind)
	family, addr := uint64(familyINET), m.client
	if !addr.IsValid() {
		addr = m.server
	}
	if addr.Addr().Is6() {
		family = familyINET6
	}
	dst = appendUint(dst, messageSocketFamily, family)
	dst = appendUint(dst, messageSocketProtocol, m.protocol)
	dst = appendAddr(dst, messageQueryAddress, messageQueryPort, m.client)
	dst = appendAddr(dst, messageResponseAddress, messageResponsePort, m.server)
	dst = appendTime(dst, messageQueryTimeSec, messageQueryTimeNsec, m.asked)
	dst = appendBytes(dst, messageQuery, m.query)
	dst = appendTime(dst, messageResponseTimeSec, messageResponseTimeNsec, m.answered)
	if dst = appendBytes(dst, messageResponse, m.response); len(m.response) >= wire.HeaderLen {
		wire.SetID(dst[len(dst)-len(m.response):], m.id)
	}
	return dst
}

func appendUint(dst []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), n)
}

func appendBytes(dst []byte, field protowire.Number, b []byte) []byte {
	if b == nil {
		return dst
	}
	return protowire.AppendBytes(protowire.AppendTag(dst, field, protowire.BytesType), b)
}

func appendAddr(dst []byte, addr, port protowire.Number, a netip.AddrPort) []byte {
	if !a.IsValid() {
		return dst
	}
	if a.Addr().Is4() {
		b := a.Addr().As4()
		dst = appendBytes(dst, addr, b[:])
	} else {
		b := a.Addr().As16()
		dst = appendBytes(dst, addr, b[:])
	}
	return appendUint(dst, port, uint64(a.Port()))
}

func appendTime(dst []byte, sec, nsec protowire.Number, at time.Time) []byte {
	if at.IsZero() {
		return dst
	}
	dst = appendUint(dst, sec, uint64(at.Unix()))                                                                  //nolint:gosec // after 1970
	return protowire.AppendFixed32(protowire.AppendTag(dst, nsec, protowire.Fixed32Type), uint32(at.Nanosecond())) //nolint:gosec // below 1e9
}
