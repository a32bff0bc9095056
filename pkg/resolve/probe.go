// SPDX-License-Identifier: Apache-2.0

package resolve

import "github.com/nodecache/node-cache/pkg/wire"

// isReturned tells whether the query in hand is one that went out to an upstream from here and has come back. It must
// not go out again.
func (l *Worker) isReturned() bool {
	name := l.q.Name()
	return wire.IsLoopName(name) && l.plan.Loop != nil && l.plan.Loop(name)
}
