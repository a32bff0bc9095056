// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// slowQuery is what counts as slow: a stub that waits so long is close to asking
// again.
const slowQuery = time.Second

// A QueryLog writes one line for each query it picks.
type QueryLog struct {
	Log    *slog.Logger
	All    bool // every query
	Errors bool // replies other than NOERROR and NXDOMAIN
	Slow   bool // replies that took a second or more
	Sample int  // every n-th query; 0: none

	count atomic.Uint64
}

// picks tells whether the log takes a reply.
func (l *QueryLog) picks(rcode int, took time.Duration) bool {
	return l.All ||
		l.Errors && rcode != wire.RcodeSuccess && rcode != wire.RcodeNXDomain ||
		l.Slow && took >= slowQuery ||
		l.Sample > 0 && l.count.Add(1)%uint64(l.Sample) == 0
}

func (l *QueryLog) record(ctx context.Context, ask *wire.Question, from *wire.Peer, source Source, rcode int, took time.Duration) {
	if !l.picks(rcode, took) {
		return
	}
	question := ask.QuestionSection()
	var name []byte
	rrtype := ask.Type
	if len(question) > 4 {
		name = wire.AppendText(nil, question[:len(question)-4])
		rrtype = ask.OriginalType() // another may be what is looked for in its place
	}
	l.Log.InfoContext(ctx, "query",
		"name", string(name), "type", rrtype, "client", from.Addr.Addr(), "tcp", from.Stream,
		"rcode", Rcodes()[rcodeGroup(rcode)], "source", Sources()[source], "took", took)
}
