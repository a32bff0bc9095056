// SPDX-License-Identifier: Apache-2.0

// Command etcd is the store behind the API server of the tests: the released module, unchanged.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
