// SPDX-License-Identifier: Apache-2.0

package hits

import (
	"fmt"

	"github.com/nodecache/node-cache/pkg/wire"
)

// expected are the replies of the process to one question, one for each rotation of its records, with their TTLs.
type expected struct {
	forms map[string][]uint32
	most  []uint32 // TTLs of a reply that was made later; nil: none was
	form  []byte
	msg   wire.Message
}

// add adds a reply of the process; nil: none.
func (e *expected) add(reply []byte) {
	if e.forms == nil {
		e.forms = map[string][]uint32{}
	}
	ttls := e.read(reply)
	if _, again := e.forms[string(e.form)]; !again {
		e.forms[string(e.form)] = ttls
	}
}

// differ says how a later reply differs from those of the process. No TTL is higher later.
func (e *expected) differ(reply []byte) string {
	ttls := e.read(reply)
	most, ok := e.forms[string(e.form)]
	if !ok {
		return "other bytes"
	}
	if len(e.most) == len(ttls) {
		most = e.most
	}
	for i, ttl := range ttls {
		if ttl > most[i] {
			return fmt.Sprintf("TTL %d, at most %d", ttl, most[i])
		}
	}
	return ""
}

// read sets form to the reply without ID, case of the question and TTLs, and returns the TTLs.
func (e *expected) read(reply []byte) (ttls []uint32) {
	e.form = append(e.form[:0], reply...)
	clear(e.form[:min(2, len(e.form))])
	if len(reply) <= wire.HeaderLen || e.msg.Parse(e.form) != nil {
		return nil
	}
	end := wire.HeaderLen
	for e.form[end] != 0 {
		end += 1 + int(e.form[end])
	}
	wire.Canonical(e.form[wire.HeaderLen:end], reply[wire.HeaderLen:end])
	for _, r := range e.msg.Records {
		ttls = append(ttls, e.msg.RecordTTL(r))
		e.msg.SetRecordTTL(r, 0)
	}
	return ttls
}
