// SPDX-License-Identifier: Apache-2.0

package servertest_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/server/servertest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// replies collects what a handler answers.
type replies struct{ got [][]byte }

func (r *replies) Reply(msg []byte, _ *wire.SendBatch) { r.got = append(r.got, bytes.Clone(msg)) }

func TestHandlerAnswers(t *testing.T) {
	t.Parallel()
	query := servertest.Query(513, "www.example.org")
	reply := bytes.Clone(query)
	reply[2] |= 0x80
	for _, tt := range []struct {
		name    string
		rule    servertest.Rule
		verdict wire.Verdict
		fast    []byte   // what AnswerFromMemory appends
		slow    [][]byte // what Resolve answers before it returns
		release [][]byte // what is answered in all after Release
	}{
		{"answer", servertest.Rule{}, wire.Answered, reply, nil, nil},
		{"answer filled up", servertest.Rule{Size: len(reply) + 2}, wire.Answered, append(bytes.Clone(reply), 0, 0), nil, nil},
		{"drop", servertest.Rule{Action: servertest.Drop}, wire.Dropped, nil, nil, nil},
		{"hold", servertest.Rule{Action: servertest.Hold}, wire.Missed, nil, nil, [][]byte{reply}},
		{"inline", servertest.Rule{Action: servertest.Inline}, wire.Missed, nil, [][]byte{reply}, [][]byte{reply}},
		{"silence", servertest.Rule{Action: servertest.NoReply}, wire.Missed, nil, [][]byte{nil}, [][]byte{nil}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := servertest.New(map[string]servertest.Rule{"www.example.org": tt.rule})
			worker := h.NewWorker()
			var peer wire.Peer
			var to replies
			fast, verdict := worker.AnswerFromMemory(query, &peer, time.Time{}, nil)
			if diff := cmp.Diff(tt.fast, fast); diff != "" || verdict != tt.verdict {
				t.Errorf("AnswerFromMemory: verdict %d, want %d; reply (-want +got):\n%s", verdict, tt.verdict, diff)
			}
			if verdict == wire.Missed {
				worker.Resolve(&peer, time.Time{}, &to)
			}
			assert.Same(t, "replies of Resolve", tt.slow, to.got)
			h.Release("www.example.org")
			assert.Same(t, "replies after Release", tt.release, to.got)
			if diff := cmp.Diff([]string(nil), h.Violations()); diff != "" || h.Seen("www.example.org") != 1 {
				t.Errorf("seen %d times, breaches (-want +got):\n%s", h.Seen("www.example.org"), diff)
			}
		})
	}
}

func TestHandlerSeesBreaches(t *testing.T) {
	t.Parallel()
	miss := func(worker server.Worker, pkt []byte) { worker.AnswerFromMemory(pkt, &wire.Peer{}, time.Time{}, nil) }
	for _, tt := range []struct {
		name string
		use  func(server.Worker)
		want []string
	}{
		{"a miss forgotten before the next query", func(worker server.Worker) {
			miss(worker, servertest.Query(1, "one.example"))
			miss(worker, servertest.Query(2, "two.example"))
		}, []string{"AnswerFromMemory two.example: Resolve is owed for one.example"}},
		{"a miss forgotten at the end of a batch", func(worker server.Worker) {
			miss(worker, servertest.Query(1, "one.example"))
			worker.Flush(time.Time{})
		}, []string{"Flush: Resolve is owed for one.example"}},
		{"a query overwritten", func(worker server.Worker) {
			pkt := servertest.Query(1, "one.example")
			miss(worker, pkt)
			pkt[0]++
			worker.Resolve(&wire.Peer{}, time.Time{}, &replies{})
		}, []string{"Resolve: the query for one.example changed since AnswerFromMemory"}},
		{"Resolve without a miss", func(worker server.Worker) {
			worker.Resolve(&wire.Peer{}, time.Time{}, &replies{})
		}, []string{"Resolve: no query was missed"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			hold := servertest.Rule{Action: servertest.Hold}
			h := servertest.New(map[string]servertest.Rule{"one.example": hold, "two.example": hold})
			tt.use(h.NewWorker())
			assert.Same(t, "breaches", tt.want, h.Violations())
		})
	}
}

func TestName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		msg  []byte
		want string
	}{
		{"a query", servertest.Query(1, "a.bc.def"), "a.bc.def"},
		{"nothing", nil, ""},
		{"a header", make([]byte, 12), ""},
		{"a cut name", servertest.Query(1, "a.bc.def")[:16], ""},
		{"a pointer", append(make([]byte, 12), 0xc0, 12), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, "got", tt.want, servertest.Name(tt.msg))
		})
	}
}
