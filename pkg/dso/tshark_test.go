// SPDX-License-Identifier: Apache-2.0

package dso_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/wire"
)

// Wireshark's dissector reads the messages as they were meant, and finds nothing malformed.
func TestWireshark(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark is not installed")
	}
	owner := []byte(service)
	keepalive := dso.Keepalive{Inactivity: 15 * time.Second, Interval: time.Minute}
	var push dso.Push
	push.Begin(nil)
	push.RemoveName(owner)
	push.Add(dso.Change{Name: owner, Type: wire.TypeA, Class: wire.ClassIN, TTL: 5, Data: []byte{10, 0, 0, 1}})
	// Response, ID, rcode, the TLVs' types and lengths, and what it knows of their content.
	tests := []struct {
		msg  []byte
		want string
	}{
		{dso.AppendKeepalive(dso.AppendHeader(nil, dso.Request, 1, 0), keepalive), "0;0x0001;;1;8;15000;60000;;"},
		{dso.AppendKeepalive(dso.AppendHeader(nil, dso.Response, 1, 0), keepalive), "1;0x0001;0;1;8;15000;60000;;"},
		{dso.AppendSubscribe(dso.AppendHeader(nil, dso.Request, 3, 0), dso.Subscription{Name: owner, Type: 255, Class: 1}), "0;0x0003;;64;32;;;;"},
		// "A DSO response message may contain no TLVs" (RFC 8490 section 5.4.2): tshark 4.0 does not know that.
		{dso.AppendHeader(nil, dso.Response, 3, 0), "1;0x0003;0;;;;;;[Malformed Packet: DNS],_ws.malformed"},
		{dso.AppendRetryDelay(dso.AppendHeader(nil, dso.Response, 4, dso.RcodeTypeNI), time.Minute), "1;0x0004;11;2;4;;;60000;"},
		{dso.AppendUnsubscribe(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), 3), "0;0x0000;;66;2;;;;"},
		{push.End(), fmt.Sprintf("0;0x0000;;65;%d;;;;", len(push.End())-16)},
		{dso.AppendPadding(dso.AppendView(dso.AppendKeepalive(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), keepalive),
			dso.View{Kinds: []dso.Versions{{Newest: 7}}}), 2), "0;0x0000;;1,63488,3;8,21,2;15000;60000;;"},
		{dso.AppendRetryDelay(dso.AppendHeader(nil, dso.Unidirectional, 0, 2), 7*time.Second), "0;0x0000;;2;4;;;7000;"},
	}
	var dump, want strings.Builder
	for _, tt := range tests {
		frame, _ := wire.SealFrame(append(wire.OpenFrame(nil), tt.msg...), 0)
		fmt.Fprintf(&dump, "000000 % x\n", frame)
		want.WriteString(tt.want + "\n")
	}
	folder := t.TempDir()
	text, capture := filepath.Join(folder, "text"), filepath.Join(folder, "capture")
	if err := os.WriteFile(text, []byte(dump.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "text2pcap", "-q", "-T", "53,5300", text, capture).CombinedOutput(); err != nil {
		t.Fatalf("text2pcap: %v: %s", err, out)
	}
	fields := "dns.flags.response dns.id dns.flags.rcode dns.dso.tlv.type dns.dso.tlv.length dns.dso.tlv.keepalive.inactivity" +
		" dns.dso.tlv.keepalive.interval dns.dso.tlv.retrydelay.retrydelay _ws.malformed"
	args := []string{"-r", capture, "-T", "fields", "-E", "separator=;"}
	for f := range strings.FieldsSeq(fields) {
		args = append(args, "-e", f)
	}
	out, err := exec.CommandContext(t.Context(), "tshark", args...).Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	if diff := cmp.Diff(want.String(), string(out)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
