import java.util.List;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.util.SafeEncoder;

public class JedisClient {
    public static void main(String[] arguments) {
        int increments = Integer.parseInt(arguments[1]);
        int flakes = Integer.parseInt(arguments[2]);
        ProtocolCommand snowflake = () -> SafeEncoder.encode("SNOWFLAKE");
        StringBuilder out = new StringBuilder();
        try (Jedis client = new Jedis("127.0.0.1", Integer.parseInt(arguments[0]))) {
            for (int at = 0; at < increments; at += 100) {
                Pipeline pipeline = client.pipelined();
                for (int number = 0; number < 100; number++) {
                    pipeline.incr("leaf-segment-test");
                }
                for (Object id : pipeline.syncAndReturnAll()) {
                    out.append((Long) id).append('\n');
                }
            }
            for (int at = 0; at < flakes; at += 100) {
                for (Object id : (List<?>) client.sendCommand(snowflake, "COUNT", "100")) {
                    out.append(SafeEncoder.encode((byte[]) id)).append('\n');
                }
            }
        }
        System.out.print(out);
    }
}
