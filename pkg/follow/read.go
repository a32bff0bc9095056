// SPDX-License-Identifier: Apache-2.0

package follow

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

var errNotRegular = errors.New("not a regular file")

// ReadFile reads a regular file of at most most bytes, a multiple of 1 KiB. It never blocks on a pipe or a device. The
// data is not nil without an error, and every error is a [*fs.PathError].
func ReadFile(path string, most int64) ([]byte, error) {
	return read(path, most, func(fs.FileInfo) error { return nil })
}

// ReadTrusted is ReadFile of a file that is [Trusted].
func ReadTrusted(path string, most int64) ([]byte, error) { return read(path, most, Trusted) }

func read(path string, most int64, check func(fs.FileInfo) error) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, &fs.PathError{Op: "read", Path: path, Err: syscall.EISDIR}
	case !info.Mode().IsRegular():
		return nil, &fs.PathError{Op: "read", Path: path, Err: errNotRegular}
	}
	if err := check(info); err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("larger than %s", size(most))}
	}
	return data, nil
}

func size(n int64) string {
	if n%(1<<20) == 0 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
