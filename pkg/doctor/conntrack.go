// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// noteTracked records in o whether the node tracks the connection of a probe, in the default
// zone or in the agent's.
func (o *Outcome) noteTracked() {
	for _, zone := range []uint16{0, rules.Zone} {
		found, err := o.hasEntry(zone)
		if err != nil {
			o.TrackedErr = err.Error()
			return
		}
		o.Tracked = o.Tracked || found
	}
}

// hasEntry reports whether a zone has a conntrack entry for the connection. It looks up that
// entry only: the whole table of a node may have a million entries.
func (o *Outcome) hasEntry(zone uint16) (bool, error) {
	family, source, protocol := uint8(unix.AF_INET), nl.CTA_IP_V4_SRC, byte(unix.IPPROTO_UDP)
	if o.To.Addr().Is6() {
		family, source = unix.AF_INET6, nl.CTA_IP_V6_SRC
	}
	if o.TCP {
		protocol = unix.IPPROTO_TCP
	}
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	addrs := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
	addrs.AddRtAttr(source, o.From.Addr().AsSlice())
	addrs.AddRtAttr(source+1, o.To.Addr().AsSlice())
	ports := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	ports.AddRtAttr(nl.CTA_PROTO_NUM, []byte{protocol})
	ports.AddRtAttr(nl.CTA_PROTO_SRC_PORT, binary.BigEndian.AppendUint16(nil, o.From.Port()))
	ports.AddRtAttr(nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, o.To.Port()))
	// The kernel marks its only answer as one of several (NLM_F_MULTI). The acknowledgement ends the read.
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_ACK)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: unix.NFNETLINK_V0})
	request.AddData(tuple)
	if zone != 0 {
		request.AddData(nl.NewRtAttr(nl.CTA_ZONE, binary.BigEndian.AppendUint16(nil, zone)))
	}
	_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return false, fmt.Errorf("looking up a conntrack entry: %w", err)
	}
	return err == nil, nil
}

// conntrackFill reads how full the conntrack table is from the directory of its sysctls.
func conntrackFill(dir string) (count, limit int, err error) {
	for file, to := range map[string]*int{"nf_conntrack_count": &count, "nf_conntrack_max": &limit} {
		text, err := os.ReadFile(dir + "/" + file)
		if errors.Is(err, os.ErrNotExist) {
			return 0, 0, errors.New("conntrack is not loaded")
		}
		if err != nil {
			return 0, 0, err
		}
		if *to, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			return 0, 0, fmt.Errorf("reading %s: %w", file, err)
		}
	}
	return count, limit, nil
}
