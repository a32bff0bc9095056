// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/rules"
)

// Attributes of conntrack entries (linux/netfilter/nfnetlink_conntrack.h).
const (
	ctGet        = 1 // IPCTNL_MSG_CT_GET
	ctTupleOrig  = 1
	ctZone       = 18
	ctTupleIP    = 1
	ctTupleProto = 2
	ctIPv4Src    = 1 // its destination follows it, then the two of IPv6
	ctIPv6Src    = 3
	ctProtoNum   = 1
	ctProtoSrc   = 2
	ctProtoDst   = 3
)

// A tracker looks up conntrack entries, each by its addresses and ports: the whole table
// of a node may have a million entries.
//
// It uses its own socket type: the kernel marks its single answer as the first of several,
// and [netlink.Conn] would wait for the others.
type tracker struct{ fd int }

func newTracker() (*tracker, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}) // a safeguard
	}
	if err != nil {
		return nil, fmt.Errorf("opening netlink: %w", err)
	}
	return &tracker{fd: fd}, nil
}

func (t *tracker) close() { _ = unix.Close(t.fd) }

// note records in o whether the node tracks the connection of a probe, in the default zone
// or in the agent's.
func (t *tracker) note(o *Outcome) {
	for _, zone := range []uint16{0, rules.Zone} {
		found, err := t.has(o, zone)
		if err != nil {
			o.TrackedErr = err.Error()
			return
		}
		o.Tracked = o.Tracked || found
	}
}

func (t *tracker) has(o *Outcome, zone uint16) (bool, error) {
	tuple, err := encodeTuple(o, zone)
	if err != nil {
		return false, err
	}
	family := byte(unix.AF_INET)
	if o.To.Addr().Is6() {
		family = unix.AF_INET6
	}
	data := append([]byte{family, unix.NFNETLINK_V0, 0, 0}, tuple...)
	request, err := netlink.Message{
		Header: netlink.Header{Length: uint32(unix.NLMSG_HDRLEN + len(data)), Type: unix.NFNL_SUBSYS_CTNETLINK<<8 | ctGet, Flags: netlink.Request},
		Data:   data,
	}.MarshalBinary()
	if err != nil {
		return false, fmt.Errorf("encoding a conntrack entry: %w", err)
	}
	err = t.execute(request)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking up a conntrack entry: %w", err)
	}
	return true, nil
}

// execute sends a request and reads the single answer. Only its error code matters.
func (t *tracker) execute(request []byte) error {
	if err := unix.Sendto(t.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 64<<10)
	n, _, err := unix.Recvfrom(t.fd, answer, 0)
	switch {
	case err != nil:
		return err
	case n < unix.NLMSG_HDRLEN:
		return errors.New("truncated answer")
	case n >= unix.NLMSG_HDRLEN+4 && binary.NativeEndian.Uint16(answer[4:]) == unix.NLMSG_ERROR:
		return unix.Errno(-int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:])))
	}
	return nil
}

func encodeTuple(o *Outcome, zone uint16) ([]byte, error) {
	src := uint16(ctIPv4Src)
	if o.To.Addr().Is6() {
		src = ctIPv6Src
	}
	proto := uint8(unix.IPPROTO_UDP)
	if o.TCP {
		proto = unix.IPPROTO_TCP
	}
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.Nested(ctTupleOrig, func(tuple *netlink.AttributeEncoder) error {
		tuple.Nested(ctTupleIP, func(ip *netlink.AttributeEncoder) error {
			ip.Bytes(src, o.From.Addr().AsSlice())
			ip.Bytes(src+1, o.To.Addr().AsSlice())
			return nil
		})
		tuple.Nested(ctTupleProto, func(p *netlink.AttributeEncoder) error {
			p.Uint8(ctProtoNum, proto)
			p.Uint16(ctProtoSrc, o.From.Port())
			p.Uint16(ctProtoDst, o.To.Port())
			return nil
		})
		return nil
	})
	if zone != 0 {
		e.Uint16(ctZone, zone)
	}
	return e.Encode()
}

// conntrackFill reads how full the conntrack table is from the directory of its sysctls.
func conntrackFill(dir string) Conntrack {
	var c Conntrack
	for _, e := range []struct {
		file string
		to   *int
	}{{"nf_conntrack_count", &c.Count}, {"nf_conntrack_max", &c.Max}} {
		text, err := os.ReadFile(dir + "/" + e.file)
		if errors.Is(err, os.ErrNotExist) {
			return Conntrack{Err: errors.New("conntrack is not loaded")}
		}
		if err != nil {
			return Conntrack{Err: err}
		}
		if *e.to, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			return Conntrack{Err: fmt.Errorf("reading %s: %w", e.file, err)}
		}
	}
	return c
}
