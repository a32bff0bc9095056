// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Ask asks q, a whole query whose ID does not matter and whose EDNS size is not above 4096. It calls to.Answered once,
// at the deadline until at the latest and maybe before it returns: with the whole answer, which has q's ID and the
// response code NOERROR or NXDOMAIN, and AD only where it is to be believed ([Config.TrustAD]), or with a [*Failure].
// The answer's question has the letters that it was asked with, which may be mixed: they tell what else the server has
// copied them to, see [wire.Message.CanonicalizeQuestion]. q is kept and must not change any more, not even then: a try that
// lost to another may still be on its way. Queries leave when later is flushed at the latest.
func (p *Pool) Ask(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	if _, failure := p.start(q, until, to, batch); failure != nil {
		to.Answered(nil, failure, batch)
	}
}

// begin begins a race, unless it is lost from the start.
func (p *Pool) start(q []byte, until time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) (*exchange, *Failure) {
	if len(q) < wire.HeaderLen {
		return nil, &Failure{Reason: Malformed, Err: errShortQuery}
	}
	snap := p.currentSnapshot()
	if len(snap.all) == 0 {
		return nil, p.noUpstreamFailure()
	}
	now := p.now()
	x := &exchange{pool: p, query: q, deadline: until, asker: to, snapshot: snap, candidates: p.selectCandidates(snap, q, now)}
	if x.candidates.count == 0 {
		return nil, &Failure{Reason: snap.downReason(), Err: errAllDown}
	}
	p.hedgeBudget.earn()
	if x.start(now, batch) {
		return nil, &x.failure
	}
	return x, nil
}

// nobody is the failure of a query when there is no upstream.
func (p *Pool) noUpstreamFailure() *Failure {
	if p.endpoints != nil {
		return &Failure{Reason: NoUpstream, Err: errNoEndpoint}
	}
	return &Failure{Reason: NoUpstream, Err: ErrNoUpstream}
}

// Exchange is Ask for those who wait. It appends the answer to dst, its question in the letters of q, and ends with ctx,
// which should carry a deadline. Its error is a [*Failure], and dst then as it was. q is not changed and, like dst, not kept.
func (p *Pool) Exchange(ctx context.Context, q, dst []byte) ([]byte, error) {
	until, limited := ctx.Deadline()
	if !limited {
		until = p.now().Add(time.Hour)
	}
	var batch wire.SendBatch
	w := waiter{answer: dst, done: make(chan struct{})}
	x, failure := p.start(append([]byte(nil), q...), until, &w, &batch) //nolint:contextcheck // ctx is looked at below
	batch.Flush()
	if failure != nil {
		return dst, failure
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		if x.abort(ctx.Err()) {
			return dst, &x.failure
		}
		<-w.done
	}
	if w.err == nil {
		wire.CopyQuestion(w.answer[len(dst):], q)
	}
	return w.answer, w.err
}

// An exchange waits for its answer.
type waiter struct {
	answer []byte // what it begins with is the caller's
	err    error
	done   chan struct{} // closed when the fields above are final
}

// Answered implements [wire.AnswerReceiver].
func (w *waiter) Answered(answer []byte, err error, _ *wire.SendBatch) {
	w.answer, w.err = append(w.answer, answer...), err
	close(w.done)
}
