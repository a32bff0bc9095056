// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// FuzzTrace parses arbitrary data as a trace.
func FuzzTrace(f *testing.F) {
	f.Add(traceMessage(unix.NFT_TRACETYPE_RULE, 0, 7).Data)
	f.Add(traceMessage(unix.NFT_TRACETYPE_POLICY, 0, 0).Data)
	f.Fuzz(func(_ *testing.T, data []byte) {
		m := traceMessage(0, 0, 0)
		m.Data = data
		parseTrace(&m)
	})
}

func traceMessage(kind, verdict uint32, handle uint64) netlink.Message {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.String(unix.NFTA_TRACE_TABLE, "fw")
	e.String(unix.NFTA_TRACE_CHAIN, "in")
	e.Uint32(unix.NFTA_TRACE_TYPE, kind)
	e.Uint64(unix.NFTA_TRACE_RULE_HANDLE, handle)
	e.Nested(unix.NFTA_TRACE_VERDICT, func(e *netlink.AttributeEncoder) error {
		e.Uint32(unix.NFTA_VERDICT_CODE, verdict)
		return nil
	})
	e.Uint32(unix.NFTA_TRACE_POLICY, verdict)
	data, err := e.Encode()
	if err != nil {
		panic(err)
	}
	return netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_TRACE}, Data: append([]byte{unix.NFPROTO_INET, 0, 0, 0}, data...),
	}
}

func TestParseTrace(t *testing.T) {
	t.Parallel()
	const drop, accept, jump = 0, 1, 1<<32 - 4 // NF_DROP, NF_ACCEPT, NFT_GOTO
	for _, tt := range []struct {
		name          string
		kind, verdict uint32
		handle        uint64
		want          bool
	}{
		{"a rule that drops", unix.NFT_TRACETYPE_RULE, drop, 7, true},
		{"a policy that drops", unix.NFT_TRACETYPE_POLICY, drop, 0, true},
		{"a rule that accepts", unix.NFT_TRACETYPE_RULE, accept, 7, false},
		{"a rule that jumps", unix.NFT_TRACETYPE_RULE, jump, 7, false},
		{"the end of a chain", unix.NFT_TRACETYPE_RETURN, drop, 7, false},
	} {
		m := traceMessage(tt.kind, tt.verdict, tt.handle)
		want := Drop{Where: "inet fw in"}
		switch tt.kind {
		case unix.NFT_TRACETYPE_POLICY:
			want.Policy = true
		case unix.NFT_TRACETYPE_RULE:
			want.Rule = "the rule with handle 7, see `nft -a list chain inet fw in`"
		}
		if got, dropped := parseTrace(&m); got != want || dropped != tt.want {
			t.Errorf("%s: %+v, dropped: %t; want %+v, %t", tt.name, got, dropped, want, tt.want)
		}
		for _, bad := range [][]byte{{1}, m.Data[:9]} {
			m.Data = bad
			if got, dropped := parseTrace(&m); dropped {
				t.Errorf("%s, truncated: dropped at %+v", tt.name, got)
			}
		}
	}
}
