package sqltest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Kind is a kind of server.
type Kind int

const (
	Postgres Kind = iota // PostgreSQL
	MariaDB              // MariaDB
)

// row has the properties in which the kinds of servers differ.
type row struct {
	name    string
	debian  string // the name of the Debian package
	brew    string
	program string
	args    func(*Server) []string
	ready   func(*Server) bool
}

var rows = [...]row{
	Postgres: {"PostgreSQL server", "postgresql", "postgresql", "postgres", postgresArgs, postgresReady},
	MariaDB:  {"MariaDB server", "mariadb-server-core", "mariadb", "mariadbd", mariaArgs, mariaReady},
}

func (k Kind) row() row { return rows[k] }

// String returns for example "PostgreSQL server".
func (k Kind) String() string { return k.row().name }

// DSN returns the DSN of a database on the server at addr, with the administrator's role. The DSN
// is for pgx on PostgreSQL, and for go-sql-driver on MariaDB.
func (k Kind) DSN(addr, database string) string {
	return k.DSNOf(map[Kind]string{Postgres: "postgres", MariaDB: "root"}[k], addr, database)
}

// DSNOf returns the DSN of a database with the given role.
func (k Kind) DSNOf(role, addr, database string) string {
	if k == Postgres {
		return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", role, addr, database)
	}
	return fmt.Sprintf("%s@tcp(%s)/%s", role, addr, database)
}

// prepare creates the files that must exist before the first start. MariaDB creates its files
// itself; it runs without the tables of privileges.
func (k Kind) prepare(s *Server) error {
	if k != Postgres {
		return nil
	}
	cmd, err := s.command("initdb", "--pgdata", s.data(), "--username=postgres", "--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8")
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return nil
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func postgresArgs(s *Server) []string {
	args := []string{"-D", s.data(), "-p", strconv.Itoa(s.port)}
	for _, setting := range []string{
		"listen_addresses=" + loopback, "unix_socket_directories=", "max_connections=200", "shared_buffers=16MB",
		"fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off", "deadlock_timeout=100ms",
	} {
		args = append(args, "-c", setting)
	}
	return args
}

// postgresReady reports whether the server is ready. It reads the file postmaster.pid, which has
// the process id in the first line, and the status in the eighth line.
func postgresReady(s *Server) bool {
	text, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	lines := strings.Split(string(text), "\n")
	return err == nil && len(lines) >= 8 &&
		strings.TrimSpace(lines[0]) == strconv.Itoa(s.process.Pid()) && strings.TrimSpace(lines[7]) == "ready"
}

func mariaArgs(s *Server) []string {
	args := []string{
		"--no-defaults", "--datadir=" + s.dir, "--bind-address=" + loopback, "--port=" + strconv.Itoa(s.port),
		"--socket=" + filepath.Join(s.dir, "sock"), "--pid-file=" + filepath.Join(s.dir, "pid"),
		"--skip-grant-tables", "--skip-networking=0", "--max-connections=200",
		"--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0",
	}
	if os.Geteuid() == 0 {
		args = append(args, "--user=root") // MariaDB runs as root only on request
	}
	return args
}

// mariaReady reports whether the server's log shows that the server is ready. Each start makes a
// new log.
func mariaReady(s *Server) bool {
	log, err := os.ReadFile(s.log)
	return err == nil && strings.Contains(string(log), "ready for connections")
}
