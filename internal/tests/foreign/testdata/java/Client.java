import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.UUID;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.redis.jedis4.JedisLockProvider;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.params.SetParams;

/**
 * Locks with Jedis' usual pattern, or with ShedLock's provider for Redis, as a program to
 * which the tests send commands.
 *
 * <p>usage: Client PORT jedis|shedlock. ../../peer_test.go describes the commands and their
 * results.
 */
@SuppressWarnings("deprecation") // most services still use the deprecated JedisPooled
public class Client {
  /** The locks of one library. */
  interface Locks {
    boolean tryLock(String key, long ms);

    boolean extend(String key, long ms);

    boolean unlock(String key);
  }

  /** The pattern that most services write by hand: SET NX PX, and scripts that compare the token. */
  static class Jedis implements Locks {
    static final String EXTEND =
        "if redis.call('get', KEYS[1]) == ARGV[1] then"
            + " return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";
    static final String UNLOCK =
        "if redis.call('get', KEYS[1]) == ARGV[1] then"
            + " return redis.call('del', KEYS[1]) else return 0 end";

    final JedisPooled redis;
    final String token = UUID.randomUUID().toString();

    Jedis(JedisPooled redis) {
      this.redis = redis;
    }

    public boolean tryLock(String key, long ms) {
      return "OK".equals(redis.set(key, token, SetParams.setParams().nx().px(ms)));
    }

    public boolean extend(String key, long ms) {
      return redis.eval(EXTEND, List.of(key), List.of(token, Long.toString(ms))).equals(1L);
    }

    public boolean unlock(String key) {
      return redis.eval(UNLOCK, List.of(key), List.of(token)).equals(1L);
    }
  }

  /** ShedLock. Its key in Redis is job-lock:default:NAME. */
  static class ShedLock implements Locks {
    final JedisLockProvider provider;
    final Map<String, SimpleLock> locks = new HashMap<>();

    ShedLock(JedisPooled redis) {
      provider = new JedisLockProvider(redis, "default");
    }

    public boolean tryLock(String key, long ms) {
      Duration atMost = Duration.ofMillis(ms);
      return keep(key, provider.lock(new LockConfiguration(Instant.now(), key, atMost, Duration.ZERO)));
    }

    public boolean extend(String key, long ms) {
      return keep(key, locks.get(key).extend(Duration.ofMillis(ms), Duration.ZERO));
    }

    boolean keep(String key, Optional<SimpleLock> lock) {
      lock.ifPresent(l -> locks.put(key, l));
      return lock.isPresent();
    }

    public boolean unlock(String key) {
      locks.get(key).unlock();
      return true; // unlock of ShedLock returns no result
    }
  }

  final JedisPooled redis;
  final Locks locks;

  Client(int port, String library) {
    redis = new JedisPooled("127.0.0.1", port);
    locks = library.equals("jedis") ? new Jedis(redis) : new ShedLock(redis);
  }

  public static void main(String[] args) throws Exception {
    Client client = new Client(Integer.parseInt(args[0]), args[1]);
    System.out.println("ready " + versions(args[1]));
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      System.out.println("answer " + client.answer(line.split(" ")));
    }
    System.exit(0);
  }

  static String versions(String library) throws Exception {
    String jedis = "Jedis " + version("redis.clients/jedis");
    return library.equals("jedis")
        ? jedis
        : "ShedLock " + version("net.javacrumbs.shedlock/shedlock-core") + ", " + jedis;
  }

  static String version(String artifact) throws Exception {
    Properties properties = new Properties();
    properties.load(Client.class.getResourceAsStream("/META-INF/maven/" + artifact + "/pom.properties"));
    return properties.getProperty("version");
  }

  String answer(String[] words) throws InterruptedException {
    String key = words[1];
    switch (words[0]) {
      case "try":
        return locks.tryLock(key, Long.parseLong(words[2])) ? "held" : "busy";
      case "wait":
        return await(key, Long.parseLong(words[2])) ? "held" : "busy";
      case "extend":
        return locks.extend(key, Long.parseLong(words[2])) ? "extended" : "lost";
      case "unlock":
        return locks.unlock(key) ? "unlocked" : "lost";
      case "visit":
        visit(key, Long.parseLong(words[2]), Integer.parseInt(words[3]), words[4], words[5]);
        return "visited";
      default:
        return "unknown question";
    }
  }

  boolean await(String key, long ms) throws InterruptedException {
    Instant until = Instant.now().plusSeconds(60);
    while (!locks.tryLock(key, ms)) {
      if (Instant.now().isAfter(until)) return false;
      Thread.sleep(5);
    }
    return true;
  }

  void visit(String key, long ms, int visits, String log, String name) throws InterruptedException {
    for (int n = 0; n < visits; n++) {
      await(key, ms);
      redis.rpush(log, "in " + name);
      Thread.sleep(1);
      redis.rpush(log, "out " + name);
      locks.unlock(key);
    }
  }
}
