// SPDX-License-Identifier: Apache-2.0

// Package memory divides the memory of the process's container among the cache, the Go runtime and the sockets.
//
// Without a limit the process takes what its configuration allows. With one, a [Share] bounds the queries, the sessions and the Go
// runtime, so that the kernel does not kill the process. docs/memory.md has the numbers.
package memory
