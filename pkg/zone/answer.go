// SPDX-License-Identifier: Apache-2.0

package zone

import (
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Answer appends to dst the answer to q.
func (z *Zone) Answer(q *wire.Query, turn uint32, now time.Time, dst []byte) ([]byte, Result) {
	return dst, Result{Verdict: Foreign, EDE: wire.EDENone}
}
